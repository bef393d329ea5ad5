import math

import pytest
import torch
from torch import nn

from groupwise.config import OptimizerSettings
from groupwise.training.optim import Optimizer, learning_rate


def rates(total: int = 10, **settings: object) -> list[float]:
    options = OptimizerSettings(lr=1.0, **settings)  # pyright: ignore[reportArgumentType]
    return [learning_rate(options, step, total) for step in range(total)]


def test_schedules_warm_up_and_come_down() -> None:
    assert rates() == [1.0] * 10
    assert rates(warmup=3)[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates(warmup=0.3) == rates(warmup=3)
    assert rates(schedule="linear") == pytest.approx([1 - step / 10 for step in range(10)])
    cosine = [0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]
    assert rates(schedule="cosine") == pytest.approx(cosine)
    assert rates(schedule="linear", warmup=5)[5:] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_fp32_step_is_torch_adamw_with_clipping() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    settings = OptimizerSettings(lr=0.1, weight_decay=0.3, betas=(0.8, 0.9), clip_norm=0.5)
    optimizer = Optimizer(ours, settings, 10)
    reference = torch.optim.AdamW(
        [
            {"params": [theirs.weight], "weight_decay": 0.3},
            {"params": [theirs.bias], "weight_decay": 0.0},
        ],
        lr=0.1,
        betas=(0.8, 0.9),
        fused=True,
    )
    for step in range(3):
        x = torch.randn(5, 4)
        ours(x).pow(2).sum().backward()
        theirs(x).pow(2).sum().backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
        reference.zero_grad()
        norm, lr = optimizer.step(step)
        assert (norm, lr) == (pytest.approx(expected.item()), 0.1)
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


def test_bf16_weights_take_steps_too_small_for_bf16() -> None:
    layer = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    optimizer = Optimizer(layer, OptimizerSettings(lr=1e-4), 100)
    for step in range(100):
        layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        optimizer.step(step)
    # 1 - 1e-4 rounds to 1 in bf16: without fp32 masters nothing would have moved.
    assert layer.weight.flatten().tolist() == pytest.approx([0.99, 0.99], abs=0.004)
    assert optimizer.masters["weight"].dtype == torch.float32
    assert optimizer.masters["weight"].flatten().tolist() == pytest.approx([0.99, 0.99], abs=1e-5)


def test_bf16_gradients_add_up_in_fp32() -> None:
    layer = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(layer, OptimizerSettings(), 1)
    for value in (256.0, 1.0, 1.0):  # 256 + 1 is 256 in bf16
        layer(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    assert layer.weight.grad is None
    grad = optimizer.masters["weight"].grad
    assert grad is not None and grad.item() == 258.0


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    layer = nn.Linear(2, 1)
    before = layer.weight.clone()
    optimizer = Optimizer(layer, OptimizerSettings(lr=1.0), 10)
    (layer(torch.ones(1, 2)) * torch.inf).sum().backward()
    norm, _ = optimizer.step(0)
    assert not math.isfinite(norm) and torch.equal(layer.weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_restored_by_name_continues_exactly(dtype: torch.dtype) -> None:
    def run(layer: nn.Linear, optimizer: Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            layer(torch.randn(3, 4).to(dtype)).pow(2).sum().backward()
            optimizer.step(step)

    torch.manual_seed(0)
    whole = nn.Linear(4, 2).to(dtype)
    first = nn.Linear(4, 2).to(dtype)
    first.load_state_dict(whole.state_dict())
    settings = OptimizerSettings(lr=0.01)
    run(whole, Optimizer(whole, settings, 6), range(6))
    half = Optimizer(first, settings, 6)
    run(first, half, range(3))
    second = nn.Linear(4, 2).to(dtype)
    second.load_state_dict(first.state_dict())
    resumed = Optimizer(second, settings, 6)
    resumed.load({name: tensor.clone() for name, tensor in half.state().items()})
    run(second, resumed, range(3, 6))
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.bias, whole.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("average", [3, 0.5])
def test_final_weights_are_the_mean_of_the_last_ones_resumed_too(
    dtype: torch.dtype, average: float
) -> None:
    seen: list[torch.Tensor] = []

    def run(layer: nn.Linear, optimizer: Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            layer(torch.randn(3, 4).to(dtype)).pow(2).sum().backward()
            optimizer.step(step)
            seen.append(optimizer.masters["weight"].detach().clone())
            optimizer.end_training_step(step + 1, layer)

    torch.manual_seed(0)
    whole = nn.Linear(4, 2).to(dtype)
    first, second = nn.Linear(4, 2).to(dtype), nn.Linear(4, 2).to(dtype)
    first.load_state_dict(whole.state_dict())
    settings = OptimizerSettings(lr=0.1, average=average)
    optimizer = Optimizer(whole, settings, 6)
    run(whole, optimizer, range(6))
    mean = torch.stack(seen[3:]).mean(0)
    assert torch.allclose(optimizer.masters["weight"], mean, rtol=1e-6, atol=1e-7)
    assert torch.equal(whole.weight, optimizer.masters["weight"].to(dtype))
    assert not torch.equal(mean, seen[-1])

    half = Optimizer(first, settings, 6)
    run(first, half, range(5))
    second.load_state_dict(first.state_dict())
    resumed = Optimizer(second, settings, 6)
    resumed.load({name: tensor.clone() for name, tensor in half.state().items()})
    run(second, resumed, range(5, 6))
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.bias, whole.bias)


def test_without_averaging_no_second_copy_is_kept() -> None:
    layer = nn.Linear(2, 1)
    optimizer = Optimizer(layer, OptimizerSettings(), 2)
    for done in (1, 2):
        optimizer.end_training_step(done, layer)
        assert not optimizer.means and not any("mean" in name for name in optimizer.state())


def test_a_run_that_is_made_longer_forgets_the_mean_it_had_begun() -> None:
    layer = nn.Linear(2, 1)
    settings = OptimizerSettings(average=3)
    short = Optimizer(layer, settings, 6)
    for done in range(1, 6):
        short.end_training_step(done, layer)
    assert short.means and short.averaged == 2

    longer = Optimizer(layer, settings, 10)
    longer.load(short.state())
    seen: list[torch.Tensor] = []
    for done in range(6, 11):
        with torch.no_grad():
            layer.weight.fill_(float(done))
        longer.end_training_step(done, layer)
        seen.append(layer.weight.clone())
        assert ("averaged" in longer.state()) == (done in (8, 9))
    assert torch.equal(seen[-1], torch.full_like(layer.weight, 9.0)), "of 8, 9 and 10"
