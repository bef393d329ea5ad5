"""Adapters, quantisation and offloading where they matter: in half precision on a GPU."""

import dataclasses
import importlib.util
import pathlib

import pytest
import torch
from torch import Tensor

from engines import generate
from groupwise.config import AdapterSettings, OptimizerSettings
from groupwise.load import make_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.training.optim import Optimizer
from groupwise.types import Group, Request, Sampling
from small_models import random_groups
from updates import annotate, update

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
QUANTIZED = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes"
)
KINDS = [
    pytest.param(None, False, id="lora"),
    pytest.param(None, True, id="dora"),
    pytest.param("nf4", False, id="nf4", marks=QUANTIZED),
    pytest.param("nf4", True, id="nf4 dora", marks=QUANTIZED),
    pytest.param("int8", False, id="int8", marks=QUANTIZED),
]
REQUESTS = [Request(tuple(range(5, 5 + n)), tuple(range(9 * n, 9 * n + 4))) for n in (3, 9, 20)]


def cuda_policy(
    quantization: str | None = None,
    dora: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    checkpointing: str | bool = False,
) -> Policy:
    """The embedded model under an adapter whose weights change its answers."""
    policy = load_policy(
        "tiny",
        torch.device("cuda"),
        dtype,
        adapter=AdapterSettings(rank=8, dora=dora),
        quantization=quantization,
        gradient_checkpointing=checkpointing,  # pyright: ignore[reportArgumentType]
    )
    assert policy.adapter is not None
    torch.manual_seed(1)
    for weight in policy.adapter.weights().values():
        weight.data += 0.02 * torch.randn_like(weight)
    return policy


def sampler_gap(policy: Policy, engine: NativeEngine) -> Tensor:
    """Sampler's minus trainer's log-probs of sampled tokens."""
    answers = generate(engine, REQUESTS, Sampling(30))
    groups: list[Group] = [
        dataclasses.replace(group, prompt_tokens=request.prompt_tokens, completions=drawn)
        for group, request, drawn in zip(random_groups(3), REQUESTS, answers, strict=True)
    ]
    gaps = [
        torch.tensor(c.old_logprobs or ()) - torch.tensor(c.logprobs)
        for group in annotate(groups, policy, None, parse({}, ["batch.epochs=2"]))
        for c in group.completions
    ]
    return torch.cat(gaps).abs()


@pytest.mark.parametrize(("quantization", "dora"), KINDS)
def test_graphs_serve_adapters_and_follow_their_updates(
    quantization: str | None, dora: bool
) -> None:
    policy = cuda_policy(quantization, dora)
    engine = make_engine(policy, parse({}))
    assert isinstance(engine, NativeEngine)
    assert (engine.graphs is None) == (quantization == "int8")
    assert sampler_gap(policy, engine).mean() < 0.05
    before = generate(engine, REQUESTS, Sampling(30, temperature=0.0))
    optimizer = Optimizer(policy.model, OptimizerSettings(lr=3e-2), 10)
    for step in range(3):
        groups = random_groups(4, 4, seed=step)
        update(groups, policy, optimizer, parse({}), progress=step, entropy_weight=0.0)
    assert generate(engine, REQUESTS, Sampling(30, temperature=0.0)) != before
    assert sampler_gap(policy, engine).mean() < 0.05


@QUANTIZED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_4_bit_weights_are_close_to_what_they_were(dtype: torch.dtype) -> None:
    whole = cuda_policy(dtype=dtype).model
    quantized = cuda_policy("nf4", dtype=dtype).model.dequantize()
    found = dict(quantized.named_parameters())
    for name, weight in whole.named_parameters():
        if name.endswith("base_layer.weight"):
            error = (found[name] - weight).float().norm() / weight.float().norm()
            assert 0.05 < error < 0.11, name


def test_fp32_lora_is_served_token_by_token_like_pefts_generate() -> None:
    policy = cuda_policy(dtype=torch.float32)
    assert policy.adapter is not None
    found = generate(NativeEngine(policy, 16), REQUESTS, Sampling(24, temperature=0.0))
    for request, answers in zip(REQUESTS, found, strict=True):
        tokens = torch.tensor([request.prompt_tokens], device="cuda")
        out = policy.adapter.peft.generate(input_ids=tokens, max_new_tokens=24, do_sample=False)
        assert answers[0].tokens == tuple(out[0, tokens.shape[1] :].tolist())


def trained(policy: Policy, settings: OptimizerSettings) -> tuple[dict[str, Tensor], int]:
    """Master weights after three updates, and the most memory that those took."""
    optimizer = Optimizer(policy.model, settings, 10)
    torch.cuda.reset_peak_memory_stats()
    for step in range(3):
        groups = random_groups(16, 8, seed=step, longest=60)
        update(groups, policy, optimizer, parse({}), progress=step, entropy_weight=0.0)
    masters = {name: master.detach().cpu() for name, master in optimizer.masters.items()}
    return masters, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_offloaded_optimizer_takes_the_same_steps(dtype: torch.dtype) -> None:
    here, _ = trained(cuda_policy(dtype=dtype), OptimizerSettings(lr=1e-3))
    away, _ = trained(cuda_policy(dtype=dtype), OptimizerSettings(lr=1e-3, offload=True))
    for name, weight in here.items():
        # Adam turns rounding of a gradient near 0 into a whole step: most weights agree closely.
        gap = (weight - away[name]).abs()
        assert gap.median() < 1e-5 and gap.max() < 7e-3, name


@QUANTIZED
def test_8_bit_moments_on_4_bit_weights() -> None:
    policy = cuda_policy("nf4")
    settings = OptimizerSettings(lr=1e-3, kind="adamw_8bit")
    assert policy.adapter is not None
    before = {name: w.detach().float().cpu() for name, w in policy.adapter.weights().items()}
    masters, _ = trained(policy, settings)
    assert all(not torch.equal(weight, before[name]) for name, weight in masters.items())


def test_offloaded_activations_take_less_gpu_memory_and_give_the_same_weights() -> None:
    kept, most = trained(cuda_policy(), OptimizerSettings(lr=1e-3))
    recomputed, less = trained(cuda_policy(checkpointing=True), OptimizerSettings(lr=1e-3))
    offloaded, least = trained(cuda_policy(checkpointing="offload"), OptimizerSettings(lr=1e-3))
    assert most > less > least
    for name, weight in recomputed.items():
        # Sums in another order; Adam turns rounding of a gradient near 0 into a whole step.
        assert (weight - offloaded[name]).abs().median() < 1e-4, name
        assert (weight - kept[name]).abs().median() < 1e-4, name


@QUANTIZED
def test_a_run_in_bf16_on_4_bits_trains_and_resumes(tmp_path: pathlib.Path) -> None:
    from groupwise.tracking.run import read_metrics
    from groupwise.training.api import train
    from runs import small_config

    options = ("device=cuda", "adapter=lora", "quantization=nf4", "algorithm.kl_weight=0.01")
    train(small_config(*options, "steps=2"), tmp_path / "run", quiet=True)
    train(small_config(*options), tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["kl"] == pytest.approx(0, abs=0.02)
    assert all(line["sampler_gap"] < 0.1 for line in lines)
