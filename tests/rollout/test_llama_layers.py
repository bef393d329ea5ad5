"""Layers by our own kernels on a CPU: norms of heads, adapters, and weights that change."""

import copy
from typing import Any

import pytest
import torch

from engines import generate
from groupwise.compat.peft import linear_with_adapter
from groupwise.config import AdapterSettings
from groupwise.policy.adapters import add_adapter
from groupwise.policy.load import Policy, make_policy
from groupwise.rollout.cpu_kernels import compiled_kernels
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers
from groupwise.rollout.native.low_rank import low_rank
from groupwise.types import Request, Sampling
from small_models import random_model, tokenizer

pytestmark = pytest.mark.skipif(compiled_kernels() is None, reason="no C compiler here")
REQUESTS = [Request(p, (0, 1, 2)) for p in ((5, 6, 7), (9,), tuple(range(11, 25)))]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(family: str = "llama", **settings: Any) -> Policy:
    """A policy with an adapter that does something."""
    model = random_model(family)
    known = {"rank": 4, "alpha": 6.0, "targets": TARGETS, "dropout": 0.1, **settings}
    adapter = add_adapter(model, AdapterSettings.model_validate(known), torch.float32, 0)
    policy = make_policy(model, tokenizer(), adapter=adapter)
    randomize(policy)
    return policy


@torch.no_grad()
def randomize(policy: Policy, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.copy_(torch.randn_like(weight) / 4)
        elif "_norm" in name:
            weight.copy_(torch.rand_like(weight) + 0.5)


@torch.no_grad()
def check(policy: Policy, engine: NativeEngine) -> None:
    """Sampled log-probs are those of the model itself."""
    policy.model.eval()
    for request, answers in zip(REQUESTS, generate(engine, REQUESTS, Sampling(12)), strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens])
            logprobs = policy.model(tokens).logits[0].log_softmax(-1)
            first = len(request.prompt_tokens)
            own = logprobs[first - 1 : -1].gather(-1, tokens[0, first:, None]).squeeze(-1)
            assert torch.allclose(own, torch.tensor(answer.logprobs), atol=2e-4)
    assert isinstance(engine.layers, FusedLayers)


def test_norms_of_queries_and_keys() -> None:
    policy = make_policy(random_model("qwen3"), tokenizer())
    randomize(policy)
    check(policy, NativeEngine(policy, 16))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("targets", [TARGETS, ["q_proj", "v_proj"], ["up_proj", "down_proj"]])
def test_adapters_are_part_of_the_layers(family: str, targets: list[str]) -> None:
    policy = adapted(family, targets=targets)
    check(policy, NativeEngine(policy, 16))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2"])
@torch.no_grad()
def test_models_in_bf16_are_sampled_from_on_a_cpu(family: str) -> None:
    """Layers of Llama's kind by our kernels, with products in bf16; others as they are."""
    policy = make_policy(random_model(family, torch.bfloat16), tokenizer())
    exact = copy.deepcopy(policy.model).float()
    engine = NativeEngine(policy, 16, page=4)
    gaps = []
    for request, answers in zip(REQUESTS, generate(engine, REQUESTS, Sampling(12)), strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens])
            first = len(request.prompt_tokens)
            logprobs = exact(tokens).logits[0, first - 1 : -1].log_softmax(-1)
            own = logprobs.gather(-1, tokens[0, first:, None]).squeeze(-1)
            gaps.append((own - torch.tensor(answer.logprobs)).abs().mean().item())
    assert max(gaps) < 0.06 and sum(gaps) / len(gaps) < 0.03
    assert isinstance(engine.layers, FusedLayers) == (family != "gemma2")


def test_an_adapter_that_is_trained_on_is_followed() -> None:
    policy = adapted()
    engine = NativeEngine(policy, 16)
    check(policy, engine)
    layers = engine.layers
    randomize(policy, seed=1)
    check(policy, engine)
    assert engine.layers is layers


def test_weights_below_an_adapter_that_were_put_elsewhere_are_followed() -> None:
    policy = adapted()
    engine = NativeEngine(policy, 16)
    check(policy, engine)
    for weight in policy.model.parameters():
        weight.data = weight.detach() * 1.1
    check(policy, engine)


def test_kinds_of_adapters() -> None:
    assert fused_layers(adapted(dora=True)) is None
    policy = adapted(rslora=True)
    check(policy, NativeEngine(policy, 16))


def test_an_adapter_that_is_switched_off_is_no_part_of_a_layer() -> None:
    policy = adapted()
    assert policy.adapter is not None
    with policy.adapter.off():
        assert fused_layers(policy) is None


@pytest.mark.parametrize("least_rank", [1, 16])
def test_adapters_of_layers_with_the_same_input_are_two_products(least_rank: int) -> None:
    policy = adapted(targets=["q_proj", "v_proj"])
    attention = policy.model.model.layers[0].self_attn
    names = ("q_proj", "k_proj", "v_proj")
    linears = [linear_with_adapter(getattr(attention, name)) for name in names]
    added = low_rank([linear for linear in linears if linear], least_rank=least_rank)
    assert added is not None and added.down.shape == (max(8, least_rank), 64)
    x = torch.randn(5, 64)
    policy.model.eval()
    whole = torch.cat([getattr(attention, name)(x) for name in names], -1)
    base = torch.cat([linear.base(x) for linear in linears if linear], -1)
    assert torch.allclose(x @ added.down.T @ added.up.T, whole - base, atol=1e-5)
