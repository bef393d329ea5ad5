"""Quantised models under an adapter: small, frozen, with right gradients, served as they are."""

import importlib.util
import logging
import pathlib
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from engines import generate
from groupwise.config import AdapterSettings
from groupwise.errors import ModelError
from groupwise.interop.folder import export_model
from groupwise.policy.footprint import footprint
from groupwise.policy.load import Policy, load_policy
from groupwise.policy.quantization import quantization_config, weight_bytes, weight_count
from groupwise.policy.resolve import TINY
from groupwise.recipe import parse, write_config
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.probe import native_engine_problem
from groupwise.training.optim import Optimizer
from groupwise.types import Request, Sampling
from runs import fingerprint, small_config
from small_models import random_groups, random_model
from test_adapters import check_sampled_log_probs
from updates import accumulate, update

HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not HAS_BITSANDBYTES, reason="no bitsandbytes")
TOKENS = torch.arange(3, 15)[None]
CPU = torch.device("cpu")
ADAPTER = AdapterSettings(rank=4, alpha=8.0)


Make = Callable[..., Policy]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small model whose layers read 64 numbers, but for one in seven that reads 48."""
    path = tmp_path_factory.mktemp("small") / "model"
    random_model("qwen2").save_pretrained(path)
    for file in TINY.glob("tokenizer*"):
        shutil.copy(file, path)
    return path


@pytest.fixture(scope="module")
def make(folder: pathlib.Path) -> Make:
    """make("nf4"): that model under an adapter; a trained one changes its answers."""

    def make_policy(kind: str | None, *, trained: bool = True) -> Policy:
        policy = load_policy(str(folder), CPU, torch.float32, adapter=ADAPTER, quantization=kind)
        assert policy.adapter is not None
        torch.manual_seed(1)
        for weight in policy.adapter.weights().values() if trained else ():
            weight.data += 0.2 * torch.randn_like(weight)
        return policy

    return make_policy


@torch.no_grad()
def logits(model: object) -> Tensor:
    return model(input_ids=TOKENS).logits  # pyright: ignore


@needs_bitsandbytes
@pytest.mark.parametrize(("kind", "bits"), [("nf4", 4.2), ("int8", 8.1)])
def test_linear_layers_shrink_and_stay_frozen(make: Make, kind: str, bits: float) -> None:
    policy, plain = make(kind), make(None)
    small = [p for p in policy.model.parameters() if p.dtype in (torch.uint8, torch.int8)]
    count = sum(weight_count(p) for p in small)
    assert bits - 0.2 < 8 * sum(weight_bytes(p) for p in small) / count < bits
    settings = parse({}).optimizer
    now, before = footprint(policy.model, settings), footprint(plain.model, settings)
    assert (now.parameters, now.trainable) == (before.parameters, before.trainable)
    assert now.weights < before.weights * 0.5
    assert not any(p.requires_grad for p in small)
    groups = random_groups(3, 4, seed=2)
    frozen = [p.clone() for p in small]
    adapter = {n: p.detach().clone() for n, p in policy.adapter.weights().items()}  # pyright: ignore
    optimizer = Optimizer(policy.model, settings.model_copy(update={"lr": 1e-2}), 10)
    metrics = update(groups, policy, optimizer, parse({}), progress=0, entropy_weight=0.0)
    assert metrics["grad_norm"] > 0
    assert all(torch.equal(a, b) for a, b in zip(small, frozen, strict=True))
    moved = [not torch.equal(p, adapter[n]) for n, p in optimizer.weights.items()]
    assert all(moved) and len(moved) == len(adapter)


@needs_bitsandbytes
def test_an_nf4_models_gradient_is_that_of_its_dequantised_weights(make: Make) -> None:
    policy, plain = make("nf4"), make(None)
    from bitsandbytes.functional import dequantize_4bit

    for name, module in policy.model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None and hasattr(weight, "quant_state"):
            whole = dequantize_4bit(weight.data, weight.quant_state)
            plain.model.get_submodule(name).weight.data.copy_(whole)
    assert torch.allclose(logits(policy.model), logits(plain.model), atol=1e-4)
    groups = random_groups(3, 4, seed=3)
    for each in (policy, plain):
        accumulate(groups, each, parse({}, ["algorithm=dr_grpo"]))
    pairs = zip(policy.adapter.weights().values(), plain.adapter.weights().values(), strict=True)  # pyright: ignore
    for ours, theirs in pairs:
        assert ours.grad is not None and theirs.grad is not None
        scale = theirs.grad.abs().max()
        assert (ours.grad - theirs.grad).abs().max() < 1e-4 * scale


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_switched_off_it_is_the_quantised_base_exactly(make: Make, kind: str) -> None:
    policy, fresh = make(kind), make(kind, trained=False)
    assert policy.adapter is not None
    assert (logits(policy.model) - logits(fresh.model)).abs().max() > 0.01
    with policy.adapter.off():
        assert torch.equal(logits(policy.model), logits(fresh.model))


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_quantised_policies_are_served_as_they_are(make: Make, kind: str) -> None:
    policy = make(kind)
    assert native_engine_problem(policy) is None and policy.layout == "shared_prefix"
    assert any(type(m) is not nn.Linear and "Linear" in type(m).__name__
               for m in policy.model.modules())  # fmt: skip
    check_sampled_log_probs(policy, 1e-4 if kind == "nf4" else 0.25)
    if kind == "int8":
        return  # 8-bit activations round with their neighbours' outliers: greedy may differ
    prompts = [(5, 6, 7), (9,), (4, 4, 8, 20)]
    requests = [Request(prompt, (0,)) for prompt in prompts]
    found = generate(NativeEngine(policy, 2), requests, Sampling(16, temperature=0.0))
    for prompt, (answer,) in zip(prompts, found, strict=True):
        assert policy.adapter is not None
        out = policy.adapter.peft.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=16, do_sample=False
        )
        assert answer.tokens == tuple(out[0, len(prompt) :].tolist())


@needs_bitsandbytes
@pytest.mark.parametrize(("kind", "largest"), [("nf4", 0.11), ("int8", 0.02)])
def test_quantised_weights_are_close_to_what_they_were(
    make: Make, kind: str, largest: float
) -> None:
    quantized, plain = make(kind).model, make(None).model
    whole = {n: p for n, p in quantized.dequantize().named_parameters() if "base_layer" in n}
    errors = []
    for name, weight in plain.named_parameters():
        if name.endswith("base_layer.weight"):
            errors.append(((whole[name] - weight).norm() / weight.norm()).item())
    assert len(errors) == 14 and max(errors) < largest
    # nf4 on a CPU leaves the layer that reads 48 numbers as it is.
    assert sum(error == 0 for error in errors) == (2 if kind == "nf4" else 0)


@needs_bitsandbytes
def test_layers_that_nf4_would_misread_on_a_cpu_are_not_quantized(
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "groupwise"):
        make("nf4")
    assert "2 of 14 layers are not quantized" in caplog.text
    with pytest.raises(ModelError, match="quantization=int8"):
        load_policy("tiny", CPU, torch.float32, adapter=ADAPTER, quantization="nf4")


@needs_bitsandbytes
def test_an_adapter_on_4_bits_is_exported_as_what_was_trained(
    make: Make, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    from transformers import AutoModelForCausalLM

    policy, run = make("nf4"), tmp_path / "run"
    assert policy.adapter is not None
    policy.adapter.save(run / "model")
    options = ("adapter=lora", "quantization=nf4", f"model={folder}")
    write_config(small_config(*options), run / "config.yaml")
    assert export_model(str(run), tmp_path / "merged", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(merged), logits(policy.model), atol=1e-4)
    original = AutoModelForCausalLM.from_pretrained(folder)
    assert (logits(original) - logits(policy.model)).abs().max() > 0.05


@needs_bitsandbytes
@pytest.mark.slow
def test_quantised_runs_resume_exactly(tmp_path: pathlib.Path) -> None:
    from groupwise.training.api import train

    options = ("adapter=lora", "quantization=int8", "algorithm.kl_weight=0.01")
    train(small_config(*options), tmp_path / "whole", quiet=True)
    train(small_config(*options, "steps=2"), tmp_path / "parts", quiet=True)
    train(small_config(*options), tmp_path / "parts", quiet=True)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_without_bitsandbytes_nothing_is_quantized_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else found(name)
    )
    with caplog.at_level(logging.WARNING, "groupwise"):
        policy = load_policy("tiny", CPU, torch.float32, adapter=ADAPTER, quantization="nf4")
    (line,) = [r.getMessage() for r in caplog.records if "quantization" in r.getMessage()]
    assert "nf4 is left out, weights stay in float32" in line
    assert "pip install 'groupwise[quant]'" in line
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert quantization_config(None, torch.float32, "tiny", CPU) is None
