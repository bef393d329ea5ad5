"""A group's answers at spread temperatures: each is drawn and scored at its own."""

import asyncio
import pathlib
from typing import Any

import pytest
import torch

from groupwise.errors import ConfigError
from groupwise.policy.policy import Policy
from groupwise.policy.token_logprobs import token_logprobs
from groupwise.rollout.engine import Engine, run_sync
from groupwise.rollout.groups import GroupSampling, sample_group
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.sampling import spread_temperatures
from groupwise.rollout.transformers import TransformersEngine
from groupwise.training.api import train
from groupwise.types import Group, Problem, Sampling, group_from_json, to_json
from runs import read_metrics, read_rollouts, small_config
from small_models import random_policy
from updates import annotate

PROMPTED = [(Problem(f"p{i}", "?"), tuple(range(3, 7 + i))) for i in range(3)]


def sample_groups(engine: Engine, policy: Policy, **options: Any) -> list[Group]:
    async def gather() -> list[Group]:
        how = GroupSampling(engine, policy, Sampling(max_tokens=9), seed=1, **options)
        return await asyncio.gather(*(sample_group(prompted, 0, how) for prompted in PROMPTED))

    return run_sync(gather())


def test_temperatures_are_spread_evenly_from_the_lower_one() -> None:
    assert spread_temperatures(4, 0.7, 1.3) == (0.7, 0.9, 1.1, 1.3)
    assert spread_temperatures(2, 0.5, 2.0) == (0.5, 2.0)
    assert spread_temperatures(1, 0.5, 2.0) == (0.5,)
    assert spread_temperatures(3, 1.0, 1.0) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("layout", ["shared_prefix", "padded"])
def test_the_trainer_scores_each_answer_at_the_temperature_it_was_drawn_at(layout: str) -> None:
    policy = random_policy("llama", layout=layout)
    answers = {}
    for engine in (NativeEngine(policy, 8), TransformersEngine(policy, 8)):
        groups = sample_groups(engine, policy, group_size=4, temperatures=(0.5, 2.0))
        assert [c.temperature for c in groups[0].completions] == [0.5, 1.0, 1.5, 2.0]
        answers[type(engine)] = [[c.tokens for c in group.completions] for group in groups]
        config = small_config("batch.epochs=2")  # two epochs need the old log-probs
        for group in annotate(groups, policy, None, config):
            for completion in group.completions:
                assert completion.old_logprobs == pytest.approx(completion.logprobs, abs=2e-4)
        assert group_from_json(to_json(groups[0])) == groups[0]
    assert answers[NativeEngine] == answers[TransformersEngine]


def test_the_middle_answer_is_the_one_that_a_single_temperature_gives() -> None:
    policy = random_policy("llama")
    engine = NativeEngine(policy, 8)
    plain = sample_groups(engine, policy, group_size=3)
    spread = sample_groups(engine, policy, group_size=3, temperatures=(0.5, 1.5))
    for a, b in zip(plain, spread, strict=True):
        assert a.completions[1].tokens == b.completions[1].tokens
        assert a.completions[1].temperature is None and b.completions[1].temperature == 1.0


def test_a_temperature_for_each_token_is_the_same_in_any_chunks() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 5), torch.nn.Linear(5, 11)
    targets, temperature = torch.arange(7), torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3, 1.0, 0.1])
    logprobs, entropies = token_logprobs(hidden, head, targets, temperature, vocab=11)
    for k in range(7):
        row, own = slice(k, k + 1), temperature[k].item()
        one, entropy = token_logprobs(hidden[row], head, targets[row], own, vocab=11)
        assert logprobs[k].item() == pytest.approx(one.item(), abs=1e-5)
        assert entropies[k].item() == pytest.approx(entropy.item(), abs=1e-5)
    chunked, _ = token_logprobs(hidden, head, targets, temperature, vocab=11, chunk_logits=22)
    assert torch.allclose(chunked, logprobs, atol=1e-6)


def test_a_run_spreads_and_stores_what_it_drew_at(tmp_path: pathlib.Path) -> None:
    spread = ("rollout.temperature_spread=[0.7, 1.3]", "algorithm.kl_weight=0.01", "eval.k=1")
    result = train(small_config(*spread, "steps=1"), tmp_path / "run", quiet=True)
    stored = read_rollouts(result.folder / "rollouts" / "step-000001.jsonl.gz")
    for group in stored:
        assert [c["temperature"] for c in group["completions"]] == [0.7, 0.9, 1.1, 1.3]
    (line,) = read_metrics(result.folder)
    assert abs(line["kl"]) < 1e-6  # the policy is still the reference, at any temperature


def test_a_spread_must_go_upward() -> None:
    with pytest.raises(ConfigError, match=r"lowest, highest"):
        small_config("rollout.temperature_spread=[1.3, 0.7]")
