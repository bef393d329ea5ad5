"""The native engine on every family it serves: the model's own greedy decoding, token for token."""

import os
import pathlib
import resource

import pytest
import torch

from engines import generate
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.memory import free_bytes
from groupwise.rollout.transformers import TransformersEngine
from groupwise.types import Request, Sampling
from small_models import FAMILIES, MIXTURES, random_policy

PROMPTS = [(5, 6, 7), (9,), tuple(range(11, 25)), (9, 30), (4, 4, 4, 4, 4, 4, 4, 8)]


@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
def test_greedy_is_token_identical_with_generate(family: str) -> None:
    policy = random_policy(family)
    requests = [Request(prompt, (0, 1)) for prompt in PROMPTS]
    greedy = Sampling(max_tokens=12, temperature=0.0)
    expected = generate(TransformersEngine(policy, 16), requests, greedy)
    # Alone in a page; in many pages, shared ones too; and with too few pages for all at once.
    for engine in (
        NativeEngine(policy, 16),
        NativeEngine(policy, 2, page=4),
        NativeEngine(policy, 16, page=4, max_pages=18),
    ):
        found = generate(engine, requests, greedy)
        for ours, theirs in zip(found, expected, strict=True):
            assert [a.tokens for a in ours] == [b.tokens for b in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
                assert a.stop == b.stop
    assert len({a.tokens for a, _ in expected}) > 1


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_sampling_agrees_with_generate(penalty: float) -> None:
    policy = random_policy("llama", seed=3)
    requests = [Request(prompt, tuple(range(n, n + 2))) for n, prompt in enumerate(PROMPTS)]
    sampling = Sampling(16, 0.9, top_p=0.9, top_k=20, min_p=0.01, repetition_penalty=penalty)
    found = generate(NativeEngine(policy, 7), requests, sampling)
    expected = generate(TransformersEngine(policy, 1), requests, sampling)  # alone: no left padding
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]


def test_a_prompt_is_computed_once_for_its_group_and_finished_rows_cost_nothing() -> None:
    policy = random_policy()
    engine = NativeEngine(policy, 64)
    generate(engine, [Request((1,), (0,))], Sampling(max_tokens=2))  # looks at the model, once
    fed: list[int] = []
    body = policy.body

    def counted(**inputs: torch.Tensor) -> torch.Tensor:
        fed.append(inputs["input_ids"].numel())
        return body(**inputs)

    object.__setattr__(policy, "body", counted)
    requests = [Request(prompt, tuple(range(8))) for prompt in PROMPTS]
    groups = generate(engine, requests, Sampling(max_tokens=20))
    prompt_tokens = sum(len(prompt) for prompt in PROMPTS)
    # The first token of an answer comes from its prompt; each later one costs one token of work.
    later = sum(len(answer.tokens) - 1 for group in groups for answer in group)
    assert sum(fed) == prompt_tokens + later


def test_the_models_own_attention_comes_back_after_sampling() -> None:
    policy = random_policy()
    before = policy.model.config._attn_implementation
    tokens = torch.tensor([[5, 6, 7, 8]])
    logits = policy.model(tokens).logits
    generate(NativeEngine(policy, 4), [Request((5, 6), (1,))], Sampling(4))
    assert policy.model.config._attn_implementation == before
    assert torch.equal(policy.model(tokens).logits, logits)


def test_an_empty_list_of_requests_gives_an_empty_list() -> None:
    assert generate(NativeEngine(random_policy(), 4), [], Sampling(4)) == []


def test_a_limit_of_addresses_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `ulimit -v` the cache asked for more than it could be given, and held no token."""
    taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    limits = (taken + 64 * 2**20, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert 0 < free_bytes(torch.device("cpu")) < 40 * 2**20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    assert free_bytes(torch.device("cpu")) == 0
