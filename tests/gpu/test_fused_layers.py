"""Decoder layers by our own kernels, and log-probs by ours, against the same in float64."""

import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engines import generate
from groupwise.config import AdapterSettings
from groupwise.policy.adapters import add_adapter
from groupwise.policy.load import Policy, make_policy
from groupwise.policy.token_logprobs import plain_logprobs, token_logprobs
from groupwise.rollout.native import kv_cache
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers
from groupwise.rollout.native.prefill import Context, prefill
from groupwise.types import Request, Sampling
from small_models import random_model, tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="no Hopper GPU")
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4}


def gap(ours: Tensor, expected: Tensor) -> float:
    return ((ours.double() - expected).norm() / expected.norm()).item()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 4


@torch.no_grad()
def policy_of(family: str, rank: int = 0) -> Policy:
    """A random model whose norms of heads and whose adapter of this rank, if any, do something."""
    model = random_model(family, torch.bfloat16, **SIZES).to("cuda")
    adapter = None
    if rank:
        adapter = add_adapter(model, AdapterSettings(rank=rank), torch.bfloat16, 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.copy_(torch.randn_like(weight) / 8)
        elif "q_norm" in name or "k_norm" in name:
            weight.copy_(torch.rand_like(weight) + 0.5)
    return make_policy(model, tokenizer(), adapter=adapter)


MODELS = [("llama", 0), ("qwen2", 0), ("mistral", 0), ("qwen3", 0), ("llama", 16), ("qwen3", 5)]
"""Families, and the rank of an adapter."""


@hopper
@pytest.mark.parametrize("rows", [1, 17, 300])
@pytest.mark.parametrize("size", [256, 1536, 14_336])
def test_rows_in_8_bits(rows: int, size: int) -> None:
    kernels = importlib.import_module("groupwise.rollout.native.fp8_kernel")
    torch.manual_seed(0)
    hidden, norm, both = random(rows, size), random(size), random(rows, 2 * size)
    delta = kernels.Delta(random(rows, size), torch.rand(rows, device="cuda"))
    scale = norm.abs().max().float().view(1) * size**0.5 / 448
    total, found = kernels.add_norm_in_fp8(hidden, delta, norm, 1e-6, scale)
    expected = hidden.double() + delta.values.double() * delta.scales.double()[:, None]
    normed = F.rms_norm(expected, (size,), norm.double(), 1e-6)
    assert gap(total, expected) < 1e-2 and gap(found.wide, normed) < 1e-2
    assert gap(found.values.double() * scale, normed) < 0.04
    gate, up = both.double().chunk(2, -1)
    for x, options in ((F.silu(gate) * up, {"gate_up": True}), (both.double(), {})):
        found = kernels.to_fp8(both, **options)
        assert gap(found.wide, x) < 1e-2
        assert gap(found.values.double() * found.scales.double()[:, None], x) < 0.04


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_linear_layers_with_norm_gate_and_residual(rows: int, splits: int, dependent: bool) -> None:
    kernels = importlib.import_module("groupwise.rollout.native.linear_kernel")
    torch.manual_seed(0)
    hidden, norm, weight, bias = random(rows, 256), random(256), random(384, 256), random(384)
    normed = F.rms_norm(hidden.double(), (256,), norm.double(), 1e-6)
    left = kernels.for_norm(hidden, norm)
    tiles = kernels.tiles_for(weight, rows)
    out, _ = kernels.launch(left, weight, tiles, bias=bias, eps=1e-6, dependent=dependent)
    assert gap(out, F.linear(normed, weight.double(), bias.double())) < 1e-2
    weight = random(2 * 400, 256)  # not a multiple of a program's outputs
    tiles = kernels.tiles_for(weight, rows, gated=True)
    gated, _ = kernels.launch(left, weight, tiles, eps=1e-6, gated=True)
    gate, up = F.linear(normed, weight.double()).chunk(2, -1)
    assert gap(gated, F.silu(gate) * up) < 1e-2
    down, next_norm = random(256, 384), random(256)
    tiles = kernels.Tiles(32, splits)
    options = {"residual": hidden, "next_norm": next_norm, "dependent": dependent}
    kernels.launch(out, down, tiles, **options)  # counters are zero again after it
    total, left = kernels.launch(out, down, tiles, **options)
    expected = F.linear(out.double(), down.double()) + hidden.double()
    assert gap(total, expected) < 1e-2
    assert gap(left.weighted, expected * next_norm.double()) < 1e-2
    assert gap(left.squares.sum(0), expected.pow(2).sum(-1)) < 1e-2


@pytest.mark.parametrize("fp8", [False, pytest.param(True, marks=hopper)])
@pytest.mark.parametrize("rows", [(1, 3), (12, 8)])
@pytest.mark.parametrize(("family", "rank"), MODELS)
def test_sampled_log_probs_are_those_of_the_models_own_layers(
    family: str, rank: int, rows: tuple[int, int], fp8: bool
) -> None:
    policy = policy_of(family, rank)
    policy.model.eval()
    assert isinstance(fused_layers(policy, fp8=fp8), FusedLayers)
    requests = [Request((5, 6, 7 + i), tuple(range(rows[1]))) for i in range(rows[0])]
    engine = NativeEngine(policy, 128, compile_layers=True, fp8=fp8)
    gaps = list[Tensor]()
    for request, answers in zip(requests, generate(engine, requests, Sampling(40)), strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens], device="cuda")
            logprobs = policy.model(tokens).logits[0].float().log_softmax(-1)
            own = logprobs[2:-1].gather(-1, tokens[0, 3:, None]).squeeze(-1)
            gaps.append((own.cpu() - torch.tensor(answer.logprobs)).abs())
    gap_each = torch.cat(gaps)  # of a single token rounding alone is up to 0.2; 0.3 in 8 bits
    assert gap_each.mean() < (0.6 if fp8 else 0.05)
    assert fp8 or gap_each.max() < 0.5
    assert engine.graphs is not None and engine.graphs.fused is not None
    assert (engine.graphs.fused.layers[0].down.fp8 is not None) == fp8


@pytest.mark.parametrize(("family", "rank"), MODELS)
@torch.no_grad()
def test_prefills_are_those_of_the_models_own_layers(
    family: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their logits and pages, of whole contexts and of what follows pages that are filled."""
    monkeypatch.setattr(kv_cache, "CHUNK_BYTES", 1)  # a chunk is 16 pages: several are needed
    policy = policy_of(family, rank)
    policy.model.eval()
    cache = kv_cache.PagedKVCache(kv_cache.kv_shape(policy), 32)
    texts = [np.arange(n) % 20 + 5 for n in (3, 70, 400, 33)]

    def filled(layers: FusedLayers | None) -> list[Tensor]:
        contexts = []
        for tokens in texts:
            count = cache.pages_for(len(tokens))
            assert cache.pool.reserve(count)
            contexts.append(Context(tokens, cache.pool.alloc(count), 0))
        logits = prefill(policy, cache, contexts, layers)
        pages = np.array([page for context in contexts for page in context.pages])
        later = [Context(c.tokens, c.pages, (len(c.tokens) - 1) // 32) for c in contexts]
        kept = [cache.read(n, pages) for n in range(cache.shape.layers)]
        return [logits, *kept, prefill(policy, cache, later, layers)]

    ours = fused_layers(policy)
    assert ours is not None
    for own, expected in zip(filled(ours), filled(None), strict=True):
        assert gap(own, expected.double()) < 0.03
    assert len(cache.chunks) > 1


@hopper
@torch.no_grad()
def test_weights_in_8_bits_follow_those_that_are_trained() -> None:
    """With the graphs that were captured before."""
    policy = policy_of("qwen2")
    policy.model.eval()
    engine = NativeEngine(policy, 16, compile_layers=True, fp8=True)
    request, sampling = Request((5, 6, 7), (0, 1, 2)), Sampling(20)
    before = generate(engine, [request], sampling)
    assert engine.graphs is not None
    graphs = dict(engine.graphs.captured)
    plain = NativeEngine(policy, 16, compile_layers=True)
    assert before != generate(plain, [request], sampling), "nothing was rounded"
    for name, weight in policy.model.named_parameters():
        if "down_proj" in name:
            weight.copy_(random(256, 384))
    after = generate(engine, [request], sampling)
    assert graphs.items() <= engine.graphs.captured.items()
    fresh = NativeEngine(policy, 16, compile_layers=True, fp8=True)
    assert after == generate(fresh, [request], sampling) != before


@torch.no_grad()
def test_an_adapter_that_is_trained_on_is_followed() -> None:
    """With the graphs that were captured before."""
    policy = policy_of("llama", 16)
    policy.model.eval()
    engine = NativeEngine(policy, 16, compile_layers=True)
    request, sampling = Request((5, 6, 7), (0, 1, 2)), Sampling(20)
    before = generate(engine, [request], sampling)
    assert policy.adapter is not None and engine.graphs is not None
    graphs = dict(engine.graphs.captured)
    for weight in policy.adapter.weights().values():
        weight.copy_(torch.randn_like(weight) / 8)
    after = generate(engine, [request], sampling)
    assert engine.graphs.captured == graphs
    fresh = NativeEngine(policy, 16, compile_layers=True)
    assert after == generate(fresh, [request], sampling) != before


@pytest.mark.parametrize("family", ["gemma2"])
def test_layers_of_another_kind_are_left_to_the_compiler(family: str) -> None:
    policy = make_policy(random_model(family, torch.bfloat16, **SIZES).to("cuda"), tokenizer())
    assert fused_layers(policy) is None


@pytest.mark.parametrize("temperature", [1.0, 0.7, "each"])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("vocab", [100, 4096, 151_936])
def test_log_probs_entropies_and_gradients(
    vocab: int, entropy_grad: bool, temperature: float | str
) -> None:
    torch.manual_seed(0)
    rows = 300
    own = torch.rand(rows, device="cuda") + 0.5 if temperature == "each" else float(temperature)
    hidden = torch.randn(rows, 64, device="cuda", requires_grad=True)
    weight = torch.randn(vocab, 64, device="cuda", requires_grad=True)
    targets = torch.randint(0, vocab, (rows,), device="cuda")
    size = {"vocab": vocab, "chunk_logits": 128 * vocab, "entropy_grad": entropy_grad}
    ours = token_logprobs(hidden, lambda h: h @ weight.T, targets, own, **size)
    logits = hidden.double() @ weight.double().T
    expected = plain_logprobs(logits, targets, own, entropy_grad)
    weights = torch.randn(2, rows, device="cuda")
    losses = []
    for logprobs, entropies in (ours, expected):
        loss = (logprobs * weights[0]).sum()
        losses.append(loss + (entropies * weights[1]).sum() if entropy_grad else loss)
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.allclose(mine.double(), theirs, atol=1e-3)
    grads = (torch.autograd.grad(loss, (hidden, weight)) for loss in losses)
    for mine, theirs in zip(*grads, strict=True):
        assert gap(mine, theirs) < 1e-3
