"""fp16 with its loss scale, 8-bit and CPU-offloaded optimizers, activations on the CPU."""

import importlib.util
import pathlib

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from groupwise.config import OptimizerSettings
from groupwise.errors import MissingExtraError
from groupwise.policy import activations
from groupwise.policy.activations import OffloadedTensor, checkpoint_activations
from groupwise.policy.load import make_policy
from groupwise.recipe import parse
from groupwise.training.api import train
from groupwise.training.loss_scale import GROW_AFTER, LossScale
from groupwise.training.optim import Optimizer
from runs import fingerprint, small_config
from small_models import random_groups, random_model, random_policy, tokenizer
from updates import accumulate, update

HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not HAS_BITSANDBYTES, reason="no bitsandbytes")


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_many_clean_steps() -> None:
    scale = LossScale(8.0)
    for _ in range(GROW_AFTER - 1):
        scale.after_step(finite=True)
    assert scale == LossScale(8.0, GROW_AFTER - 1)
    scale.after_step(finite=True)
    assert scale == LossScale(16.0, 0)
    scale.after_step(finite=True)
    scale.after_step(finite=False)
    assert scale == LossScale(8.0, 0)
    for _ in range(9):
        scale.after_step(finite=False)
    assert scale.value == 1.0


def test_gradients_too_small_for_fp16_survive_scaled() -> None:
    layer = nn.Linear(1, 1, bias=False).half()
    with torch.no_grad():
        layer.weight.fill_(0.5)
    optimizer = Optimizer(layer, OptimizerSettings(lr=1e-2), 10)
    tiny = torch.full((1, 1), 1e-3, dtype=torch.float16)
    (layer(tiny).float().sum() * 1e-5).backward()  # a gradient of 1e-8, which fp16 cannot hold
    assert optimizer.step(0)[0] == 0
    (layer(tiny).float().sum() * 1e-5 * optimizer.loss_scale).backward()
    norm, _ = optimizer.step(0)
    assert norm == pytest.approx(1e-8, rel=1e-2)


def test_an_overflow_is_skipped_counted_and_makes_the_scale_smaller() -> None:
    policy = random_policy(dtype=torch.float16)
    optimizer = Optimizer(policy.model, OptimizerSettings(lr=1e-2), 10)
    assert optimizer.scale == LossScale()
    optimizer.scale = LossScale(2.0**30, 7)
    before = {name: weight.clone() for name, weight in optimizer.weights.items()}
    groups = random_groups()
    metrics = update(groups, policy, optimizer, parse({}), progress=0, entropy_weight=0.0)
    assert (metrics["skipped"], metrics["updates"], metrics["loss_scale"]) == (1, 0, 2.0**29)
    assert all(torch.equal(w, before[n]) for n, w in optimizer.weights.items())
    optimizer.scale = LossScale(2.0**10)
    metrics = update(groups, policy, optimizer, parse({}), progress=0, entropy_weight=0.0)
    assert (metrics["skipped"], metrics["updates"]) == (0, 1)
    assert any(not torch.equal(w, before[n]) for n, w in optimizer.weights.items())


def test_fp16_gradients_do_not_depend_on_the_scale_and_are_fp32s() -> None:
    groups, config = random_groups(4, 4, seed=3), parse({}, ["algorithm=dr_grpo"])
    norms = []
    for dtype, scale in ((torch.float32, None), (torch.float16, 16.0), (torch.float16, 1024.0)):
        policy = random_policy(dtype=dtype)
        optimizer = Optimizer(policy.model, OptimizerSettings(), 10)
        optimizer.scale = None if scale is None else LossScale(scale)
        metrics = update(groups, policy, optimizer, config, progress=0, entropy_weight=0.0)
        norms.append(metrics["grad_norm"])
    assert norms[1] == pytest.approx(norms[2], rel=1e-3)
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def steps(layer: nn.Linear, optimizer: Optimizer, which: range) -> None:
    for step in which:
        torch.manual_seed(step)
        x = torch.randn(3, layer.in_features).to(layer.weight.dtype)
        (layer(x).float().pow(2).mean() * optimizer.loss_scale).backward()
        optimizer.step(step)


def fresh_layer(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(9)
    return nn.Linear(128, 64).to(dtype)


KINDS = [
    pytest.param("adamw", False, torch.float16, id="fp16"),
    pytest.param("adamw", True, torch.float32, id="offload"),
    pytest.param("adamw", True, torch.bfloat16, id="offload bf16"),
    pytest.param("adamw_8bit", False, torch.float32, id="8bit", marks=needs_bitsandbytes),
    pytest.param("adamw_8bit", True, torch.bfloat16, id="8bit offload", marks=needs_bitsandbytes),
]


@pytest.mark.parametrize(("kind", "offload", "dtype"), KINDS)
def test_state_restored_by_name_continues_exactly(
    kind: str, offload: bool, dtype: torch.dtype
) -> None:
    settings = OptimizerSettings(lr=0.01, kind=kind, offload=offload)  # pyright: ignore
    whole = fresh_layer(dtype)
    steps(whole, Optimizer(whole, settings, 6), range(6))
    first = fresh_layer(dtype)
    half = Optimizer(first, settings, 6)
    steps(first, half, range(3))
    if half.scale is not None:
        half.scale = LossScale(512.0, 1999)
    second = fresh_layer(dtype)
    second.load_state_dict(first.state_dict())
    resumed = Optimizer(second, settings, 6)
    resumed.load({name: tensor.clone() for name, tensor in half.state().items()})
    assert resumed.scale == half.scale
    steps(second, resumed, range(3, 6))
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.bias, whole.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offloaded_optimizer_gives_the_same_numbers(dtype: torch.dtype) -> None:
    here, away = fresh_layer(dtype), fresh_layer(dtype)
    steps(here, Optimizer(here, OptimizerSettings(lr=0.01), 4), range(4))
    optimizer = Optimizer(away, OptimizerSettings(lr=0.01, offload=True), 4)
    steps(away, optimizer, range(4))
    assert torch.equal(here.weight, away.weight) and torch.equal(here.bias, away.bias)
    assert optimizer.masters["weight"] is not away.weight
    assert all(m.device.type == "cpu" for m in optimizer.masters.values())


@needs_bitsandbytes
def test_8_bit_moments_step_like_adamw_and_are_8_bits() -> None:
    exact, small = fresh_layer(torch.float32), fresh_layer(torch.float32)
    start = exact.weight.detach().clone()
    steps(exact, Optimizer(exact, OptimizerSettings(lr=0.01), 5), range(5))
    optimizer = Optimizer(small, OptimizerSettings(lr=0.01, kind="adamw_8bit"), 5)
    steps(small, optimizer, range(5))
    state = optimizer.state()
    assert state["state1.weight"].dtype == state["state2.weight"].dtype == torch.uint8
    way, theirs = ((layer.weight.detach() - start).flatten() for layer in (exact, small))
    assert torch.nn.functional.cosine_similarity(way, theirs, dim=0) > 0.99
    assert theirs.norm().item() == pytest.approx(way.norm().item(), rel=0.05)


def test_without_bitsandbytes_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"groupwise\[quant\]"):
        Optimizer(nn.Linear(2, 2), OptimizerSettings(kind="adamw_8bit"), 1)


def gradient(mode: str) -> tuple[Tensor, int]:
    """The gradient of a step on a random model, and how many tensors were offloaded for it."""
    model = random_model()
    if mode != "kept":
        checkpoint_activations(model, offload=mode == "offload")
    copies = 0
    original = OffloadedTensor.offload

    def counted(self: OffloadedTensor) -> None:
        nonlocal copies
        original(self)
        assert self.on_device is None and self.on_cpu is not None
        copies += 1

    policy = make_policy(model, tokenizer())
    model.train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations.OffloadedTensor, "offload", counted)
        accumulate(random_groups(3, 4, seed=4), policy, parse({}, ["algorithm=dr_grpo"]))
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads), copies


def test_recomputed_and_offloaded_activations_give_the_same_gradient() -> None:
    kept, _ = gradient("kept")
    recomputed, none = gradient("recomputed")
    offloaded, copies = gradient("offload")
    assert torch.equal(kept, recomputed) and torch.equal(kept, offloaded)
    assert (none, copies) == (0, 2)  # one input for each layer


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("precision=fp16",),
        ("precision=bf16", "optimizer.offload=true", "gradient_checkpointing=offload"),
        pytest.param(("optimizer.kind=adamw_8bit",), marks=needs_bitsandbytes),
    ],
    ids=" ".join,
)
def test_runs_resume_exactly(options: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    config = small_config(*options)
    train(config, tmp_path / "whole", quiet=True)
    train(small_config(*options, "steps=2"), tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    saved = load_file(tmp_path / "parts" / "checkpoints" / "step-000004" / "optimizer.safetensors")
    assert ("loss_scale" in saved) == (options == ("precision=fp16",))
