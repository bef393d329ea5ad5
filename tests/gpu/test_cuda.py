"""What only a GPU can show: graphs, flash attention over slots, flex attention with gradients."""

import dataclasses

import pytest
import torch

from groupwise.policy.forward import flex_problem
from groupwise.policy.load import Policy, make_policy
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.transformers import TransformersEngine
from groupwise.train.step import accumulate
from groupwise.types import Request, Sampling
from small_models import random_groups, random_model, tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
REQUESTS = [Request(tuple(range(5, 5 + n)), tuple(range(9 * n, 9 * n + 4))) for n in (3, 9, 20)]


def cuda_policy(family: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Policy:
    return make_policy(random_model(family, dtype).to("cuda"), tokenizer())


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2"])
@pytest.mark.parametrize("slots", [64, 5])
def test_greedy_in_fp32_is_token_identical_with_generate(family: str, slots: int) -> None:
    policy = cuda_policy(family, torch.float32)
    greedy = Sampling(max_tokens=30, temperature=0.0)
    expected = TransformersEngine(policy, 16).generate(REQUESTS, greedy)
    found = NativeEngine(policy, slots).generate(REQUESTS, greedy)
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]


@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_log_probs_agree_with_the_trainers(compiled: bool) -> None:
    policy = cuda_policy()
    groups = NativeEngine(policy, 64, compile_body=compiled).generate(REQUESTS, Sampling(30))
    for request, answers in zip(REQUESTS, groups, strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens], device="cuda")
            logps = policy.model(tokens).logits[0].float().log_softmax(-1)
            start = len(request.prompt_tokens)
            own = logps[start - 1 : -1].gather(-1, tokens[0, start:, None]).squeeze(-1)
            gap = (own.cpu() - torch.tensor(answer.logps)).abs()
            assert gap.mean() < 0.05


def test_flex_attention_gives_the_dense_gradient() -> None:
    policy = dataclasses.replace(cuda_policy(), flex=False)
    assert flex_problem(policy) is None
    grads = []
    for flex in (False, True):
        policy.model.zero_grad()
        accumulate(random_groups(5, 6, 1), dataclasses.replace(policy, flex=flex), parse({}))
        found = [p.grad.float().flatten() for p in policy.model.parameters() if p.grad is not None]
        grads.append(torch.cat(found))
    assert torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=0) > 0.995
