"""Products in 8 bits against the same numbers in float64, and a policy trained with them."""

import pathlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from groupwise import load
from groupwise.config import AdapterSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy import fp8
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.adapters import add_adapter
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.fp8 import Fp8Linear, check_fp8, fp8_products, product, quantized
from groupwise.policy.policy import Policy
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.training.api import train
from runs import small_config, timeless_metrics
from small_models import random_groups, random_model, random_policy
from updates import accumulate

ROUNDING = 2**-8
"""Of a sum to bf16, relative to its largest parts."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def dequantized(x: Tensor) -> Tensor:
    values, scales = quantized(x)
    return values.double() * scales.double()


def gap(ours: Tensor, right: Tensor) -> float:
    return float((ours.double() - right).norm() / right.norm())


def test_numbers_keep_three_bits_of_their_own_row() -> None:
    torch.manual_seed(0)
    x = random(9, 64) * torch.logspace(-6, 6, 9)[:, None].bfloat16()
    x[4] = 0
    found = dequantized(x)
    assert torch.equal(found[4], torch.zeros(64).double())
    largest = x.double().abs().amax(1, keepdim=True)
    error = (found - x.double()).abs()
    assert bool((error <= (x.double().abs() / 16).clamp(min=2**-9 * largest / 448)).all())
    alone = torch.cat([dequantized(row[None]) for row in x])
    assert torch.equal(alone, found), "a row depends on its neighbours"


def test_a_product_adds_up_exactly_what_was_quantized() -> None:
    torch.manual_seed(0)
    x, weight = random(37, 128), random(96, 128)
    right = dequantized(x) @ dequantized(weight).t()
    assert gap(product(x, weight), right) < ROUNDING
    assert 0.01 < gap(product(x, weight), x.double() @ weight.double().t()) < 0.05


def test_gradients_are_those_of_the_quantized_product() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(128, 96, dtype=torch.bfloat16)
    layer.__class__ = Fp8Linear
    x, grad = random(3, 37, 128).requires_grad_(), random(3, 37, 96)
    layer(x).backward(grad)
    assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
    rows, flat = grad.flatten(0, 1), x.detach().flatten(0, 1).double()
    right = dequantized(rows) @ dequantized(layer.weight.detach().t().contiguous()).t()
    assert gap(x.grad.flatten(0, 1), right) < ROUNDING
    assert gap(layer.weight.grad, rows.double().t() @ flat) < ROUNDING
    assert gap(layer.bias.grad, rows.double().sum(0)) < ROUNDING


def test_frozen_weights_keep_no_inputs() -> None:
    layer = nn.Linear(128, 96, dtype=torch.bfloat16).requires_grad_(False)
    layer.__class__ = Fp8Linear
    x = random(37, 128).requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = layer(x)
    assert [tensor.shape for tensor in kept] == [layer.weight.shape]
    out.sum().backward()
    assert x.grad is not None and layer.weight.grad is None


def test_only_large_linear_layers_of_decoder_layers_change_and_only_for_a_while() -> None:
    model = random_model(intermediate_size=96)
    add_adapter(model, AdapterSettings(rank=64, targets="all-linear"), torch.float32, 0)
    layers = decoder_layers(model)
    assert layers is not None
    with fp8_products(model):
        found = {name for name, m in layers[0].named_modules() if isinstance(m, Fp8Linear)}
        assert not isinstance(model.lm_head, Fp8Linear)
    large = (
        "self_attn.q_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
    assert found == {f"{name}.base_layer" for name in large}, "those of 32 outputs are small"
    assert not any(isinstance(module, Fp8Linear) for module in model.modules())


def gradient(policy: Policy, fp8: str) -> Tensor:
    policy.model.zero_grad()
    config = parse({"fp8": fp8, "algorithm": {"mismatch": "none"}})
    accumulate(random_groups(3, 4, 1), policy, config)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def test_the_gradient_points_where_that_in_bf16_does_recomputed_too() -> None:
    policy = random_policy("qwen2", dtype=torch.bfloat16)
    plain, ours = gradient(policy, "none").double(), gradient(policy, "training").double()
    assert 0.9 < cosine_similarity(plain, ours, dim=0) < 0.99999
    checkpoint_activations(policy.model, offload=False)
    policy.model.train()
    assert torch.equal(gradient(policy, "training").double(), ours)


def test_a_run_learns_in_8_bits_and_corrects_for_them(tmp_path: pathlib.Path) -> None:
    settings = ["steps=2", "precision=bf16", "eval.problems=4", "eval.k=1"]
    for name in ("none", "training"):
        train(small_config(*settings, f"fp8={name}"), tmp_path / name, quiet=True)
    plain, ours = (timeless_metrics(tmp_path / name) for name in ("none", "training"))
    assert "mismatch" in ours[0] and "mismatch" not in plain[0]
    assert ours[0]["sampler_gap"] > 2 * plain[0]["sampler_gap"]
    assert ours[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=0.3)


def test_answers_are_weighed_unless_the_recipe_says_otherwise() -> None:
    assert parse({"fp8": "training"}).algorithm.mismatch == "token"
    given = {"fp8": "training", "algorithm": {"mismatch": "none"}}
    assert parse(given).algorithm.mismatch == "none"


def test_what_cannot_be_computed_in_8_bits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    here, policy = torch.device("cpu"), random_policy(dtype=torch.bfloat16)
    small = replace(policy, model=random_model(hidden_size=32, dtype=torch.bfloat16))
    with pytest.raises(ConfigError, match="precision=bf16"):
        check_fp8(random_policy(), here)
    with pytest.raises(ConfigError, match="no linear layers"):
        check_fp8(small, here)

    def lacks(*_: object, **__: object) -> None:
        raise RuntimeError("is only supported on compute capability 9.0\nand more")

    check_fp8(policy, here)
    monkeypatch.setattr(fp8, "scaled_mm", lacks)
    with pytest.raises(ConfigError, match=r"Hopper generation or newer: is only .* 9\.0$"):
        check_fp8(policy, here)


def test_sampling_in_8_bits_is_refused_where_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="fp8=all is for the native engine: take fp8=training"):
        parse({"fp8": "all", "engine": {"kind": "transformers"}})
    policy = random_policy(dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match=r"needs a CUDA device \(cpu here\)"):
        NativeEngine(policy, 4, fp8=True)
    monkeypatch.setattr(load, "native_engine_problem", lambda _: "its layers are of another kind")
    with pytest.raises(ModelError, match=r"another kind.* and without fp8"):
        load.make_engine(policy, parse({"fp8": "sampling"}))
