"""What only a GPU can show: graphs, our kernel over slots, flash attention over packed answers."""

import pytest
import torch
import torch.nn.functional as F

from groupwise.policy.attention import AttentionOptions, grouped_query_attention
from groupwise.policy.compiled import _uncompilable
from groupwise.policy.load import Policy, make_policy
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.transformers import TransformersEngine
from groupwise.types import Request, Sampling
from small_models import random_groups, random_model, tokenizer
from updates import accumulate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
REQUESTS = [Request(tuple(range(5, 5 + n)), tuple(range(9 * n, 9 * n + 4))) for n in (3, 9, 20)]


def cuda_policy(family: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Policy:
    return make_policy(random_model(family, dtype).to("cuda"), tokenizer())


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2"])
@pytest.mark.parametrize("slots", [64, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_in_fp32_is_token_identical_with_generate(
    family: str, slots: int, compiled: bool
) -> None:
    policy = cuda_policy(family, torch.float32)
    greedy = Sampling(max_tokens=30, temperature=0.0)
    expected = TransformersEngine(policy, 16).generate(REQUESTS, greedy)
    found = NativeEngine(policy, slots, compiled).generate(REQUESTS, greedy)
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]


@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_log_probs_agree_with_the_trainers(compiled: bool) -> None:
    policy = cuda_policy()
    groups = NativeEngine(policy, 64, compile_layers=compiled).generate(REQUESTS, Sampling(30))
    for request, answers in zip(REQUESTS, groups, strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens], device="cuda")
            logprobs = policy.model(tokens).logits[0].float().log_softmax(-1)
            start = len(request.prompt_tokens)
            own = logprobs[start - 1 : -1].gather(-1, tokens[0, start:, None]).squeeze(-1)
            gap = (own.cpu() - torch.tensor(answer.logprobs)).abs()
            assert gap.mean() < 0.05


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("compiled", ["none", "all"])
def test_packed_answers_give_the_padded_gradient(family: str, compiled: str) -> None:
    groups = random_groups(5, 6, 1, empty=True)
    grads = []
    for layout in ("padded", "shared_prefix"):
        policy = make_policy(random_model(family, torch.bfloat16).to("cuda"), tokenizer(), layout)
        accumulate(groups, policy, parse({"compile": compiled}))
        found = [p.grad.float().flatten() for p in policy.model.parameters() if p.grad is not None]
        grads.append(torch.cat(found))
    assert not _uncompilable
    assert F.cosine_similarity(grads[0], grads[1], dim=0) > 0.995


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "shared", "size", "window", "softcap"),
    [(14, 2, 64, 0, 0.0), (4, 4, 80, 0, 0.0), (8, 2, 32, 20, 0.0), (8, 1, 128, 0, 5.0)],
)
def test_the_kernel_stores_and_attends(
    dtype: torch.dtype, heads: int, shared: int, size: int, window: int, softcap: float
) -> None:
    from groupwise.rollout.native.decode_kernel import decode_attention

    torch.manual_seed(0)
    kv_lens = torch.tensor([0, 1, 63, 64, 150], device="cuda")
    rows, length = len(kv_lens), 200

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device="cuda")

    keys, values = random(rows + 2, length, shared, size), random(rows + 2, length, shared, size)
    joint = random(rows, 1, heads + 2 * shared, size).transpose(1, 2)
    q, k, v = joint.split([heads, shared, shared], dim=1)
    expected_keys, expected_values = keys.clone(), values.clone()
    expected_keys[torch.arange(rows), kv_lens] = k[:, :, 0]
    expected_values[torch.arange(rows), kv_lens] = v[:, :, 0]
    distance = kv_lens[:, None] - torch.arange(length, device="cuda")
    seen = (distance >= 0) & (distance < (window or length))
    options = AttentionOptions(size**-0.5, window or None, softcap or None)
    stored = expected_keys[:rows].transpose(1, 2), expected_values[:rows].transpose(1, 2)
    expected = grouped_query_attention(q, *stored, seen[:, None, None], options)
    found = decode_attention(q, k, v, keys, values, kv_lens, options.scale, window, softcap)
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)
    assert (found - expected).abs().max() < (1e-5 if dtype == torch.float32 else 0.03)


def test_weights_that_move_in_memory_are_followed() -> None:
    policy = cuda_policy("qwen2", torch.float32)
    greedy = Sampling(max_tokens=12, temperature=0.0)
    engine = NativeEngine(policy, 16, compile_layers=True)
    engine.generate(REQUESTS, greedy)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.data = parameter.data * 1.5
    expected = TransformersEngine(policy, 16).generate(REQUESTS, greedy)
    found = engine.generate(REQUESTS, greedy)
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]
