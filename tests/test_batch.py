"""The gradient must not depend on layout, micro-batch size, accumulation or order."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.batch import make_batch
from groupwise.config import Config
from groupwise.policy.load import Policy
from groupwise.policy.packing import microbatches
from groupwise.recipe import parse
from groupwise.training.update import rollout_batch
from groupwise.types import Group
from small_models import FAMILIES, random_groups, random_policy
from updates import accumulate, annotate


def gradient(policy: Policy, groups: list[Group], config: Config) -> tuple[torch.Tensor, float]:
    policy.model.zero_grad()
    metrics = accumulate(groups, policy, config)
    assert metrics is not None
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(grads), metrics["loss"][0].item()


def config_with(*overrides: str) -> Config:
    return parse({}, overrides)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("empty", [False, True])
def test_shared_prefix_gives_the_padded_gradient(family: str, empty: bool) -> None:
    groups = random_groups(4, 5, seed=1, empty=empty)
    config = config_with("algorithm=dapo")
    shared = random_policy(family, "shared_prefix", torch.float64)
    padded = random_policy(family, "padded", torch.float64)
    grad_shared, loss_shared = gradient(shared, groups, config)
    grad_padded, loss_padded = gradient(padded, groups, config)
    assert grad_padded.norm() > 1e-3
    assert loss_shared == pytest.approx(loss_padded, abs=1e-7)
    # Gemma 2 caps its attention scores, and so do we; transformers' SDPA leaves the cap out.
    tolerance = 1e-4 if family == "gemma2" else 1e-6
    assert (grad_shared - grad_padded).abs().max() < tolerance * grad_padded.abs().max()


@pytest.mark.parametrize("layout", ["shared_prefix", "padded"])
@pytest.mark.parametrize("preset", ["grpo", "dapo", "dr_grpo", "gspo", "luspo", "cispo", "sapo"])
def test_gradient_does_not_depend_on_micro_batch_size(layout: str, preset: str) -> None:
    groups = random_groups(5, 4, seed=2)
    policy = random_policy(layout=layout, dtype=torch.float64)
    whole, loss = gradient(policy, groups, config_with(f"algorithm={preset}"))
    for budget in (1, 17, 40, 100):
        setting = f"batch.tokens_per_microbatch={budget}"
        pieces, piece_loss = gradient(policy, groups, config_with(f"algorithm={preset}", setting))
        assert (whole - pieces).abs().max() < 1e-6 * whole.abs().max()
        assert piece_loss == pytest.approx(loss, abs=1e-7)


def test_gradient_does_not_depend_on_the_order_of_groups_and_answers() -> None:
    groups = random_groups(4, 4, seed=3)
    shuffled = [
        dataclasses.replace(
            group,
            completions=group.completions[::-1],
            rewards=group.rewards[::-1],
            advantages=group.advantages[::-1],
        )
        for group in reversed(groups)
    ]
    policy = random_policy(dtype=torch.float64)
    one, _ = gradient(policy, groups, config_with())
    other, _ = gradient(policy, shuffled, config_with())
    assert (one - other).abs().max() < 1e-6 * one.abs().max()


def test_bnpo_does_depend_on_micro_batching() -> None:
    groups = random_groups(4, 4, seed=4)
    policy = random_policy(dtype=torch.float64)
    one, _ = gradient(policy, groups, config_with("algorithm=bnpo"))
    small = "batch.tokens_per_microbatch=20"
    other, _ = gradient(policy, groups, config_with("algorithm=bnpo", small))
    assert (one - other).abs().max() > 1e-3 * one.abs().max()


def test_groups_without_spread_are_not_computed_and_still_count() -> None:
    groups = random_groups(3, 4, seed=5)
    flat = dataclasses.replace(groups[0], rewards=(1.0,) * 4, advantages=(0.0,) * 4)
    policy = random_policy(dtype=torch.float64)
    calls = []

    def body(**inputs: torch.Tensor) -> torch.Tensor:
        calls.append(inputs["input_ids"].shape[1])
        return policy.body(**inputs)

    watched = dataclasses.replace(policy, body=body)
    skipping, loss = gradient(watched, [flat, *groups[1:]], config_with())
    alone = calls.pop()
    entropy = ["algorithm.entropy_weight=1e-12"]  # makes every group matter, and changes nothing
    everything, full_loss = gradient(watched, [flat, *groups[1:]], config_with(*entropy))
    assert calls == [
        alone + len(flat.prompt_tokens) + sum(len(c.tokens) - 1 for c in flat.completions)
    ]
    assert (skipping - everything).abs().max() < 1e-6 * skipping.abs().max()
    assert loss == pytest.approx(full_loss, abs=1e-7)


def test_top_entropy_threshold_is_that_of_the_whole_rollout() -> None:
    groups = random_groups(4, 4, seed=6)
    policy = random_policy(dtype=torch.float64)
    config = config_with("algorithm.top_entropy=0.3")
    groups = annotate(groups, policy, None, config)
    threshold = rollout_batch(groups, config).entropy_threshold
    assert threshold is not None
    entropies = [e for g in groups for c in g.completions for e in c.old_entropies or ()]
    kept = sum(e >= threshold for e in entropies)
    assert kept == pytest.approx(0.3 * len(entropies), abs=1)
    small = config_with("algorithm.top_entropy=0.3", "batch.tokens_per_microbatch=30")
    grads = []
    for setting in (config, small):
        policy.model.zero_grad()
        accumulate(groups, policy, setting)
        grads.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert (grads[0] - grads[1]).abs().max() < 1e-6 * grads[0].abs().max()


@given(
    count=st.integers(1, 6),
    size=st.integers(2, 6),
    budget=st.integers(1, 200),
    seed=st.integers(0, 1000),
    layout=st.sampled_from(["shared_prefix", "padded"]),
)
@settings(max_examples=60, deadline=None)
def test_every_answer_token_is_predicted_exactly_once(
    count: int, size: int, budget: int, seed: int, layout: str
) -> None:
    groups = random_groups(count, size, seed, empty=True)
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    for micro in microbatches(make_batch(groups), layout, budget):
        rows = micro.rows
        height = rows.tokens_RS.shape[0]
        assert height == 1 or rows.tokens_RS.numel() <= budget
        answers = torch.zeros(rows.shape_BT, dtype=torch.long).flatten()
        answers[rows.slot_K] = rows.target_K
        answers = answers.view(rows.shape_BT)
        for line, (group, answer) in enumerate(micro.members):
            length = int(micro.mask_BT[line].sum())
            assert (group, answer) not in seen
            seen[group, answer] = tuple(answers[line, :length].tolist())
    assert seen == {
        (g, a): completion.tokens
        for g, group in enumerate(groups)
        for a, completion in enumerate(group.completions)
    }


def test_a_group_is_split_only_when_it_does_not_fit() -> None:
    groups = random_groups(3, 4, seed=7)

    def rows(budget: int) -> list[int]:
        micros = microbatches(make_batch(groups), "shared_prefix", budget)
        return [len(micro.rows.groups or ()) for micro in micros]

    assert rows(10_000) == [3]
    assert sum(rows(15)) > 3


def test_minibatches_are_even_to_within_one() -> None:
    parts = list(make_batch(random_groups(7, 2)).minibatches(3))
    assert [len(part.groups) for part in parts] == [2, 3, 2]
    assert [part.denominator.answers for part in parts] == [4, 6, 4]


def test_denominator_counts_answers_and_sampled_tokens() -> None:
    groups = random_groups(2, 3, seed=8)
    tokens = sum(len(c.tokens) for g in groups for c in g.completions)
    cut = sum(len(c.tokens) for g in groups for c in g.completions if c.truncated)
    assert 0 < cut < tokens
    assert make_batch(groups, max_tokens=50).denominator.tokens == tokens
    masked = make_batch(groups, mask_truncated=True, max_tokens=50).denominator
    assert (masked.tokens, masked.answers, masked.max_tokens) == (tokens - cut, 6, 50)


def test_stored_groups_are_the_batchs_own_numbers_and_make_the_same_batch_again() -> None:
    groups = random_groups(3, 4, seed=9, empty=True)
    batch = make_batch(groups)
    values = torch.randn(batch.mask_BT.shape)
    batch = dataclasses.replace(batch, old_logprobs_BT=values, ref_logprobs_BT=values * 2)
    stored = batch.stored_groups()
    assert stored[1].completions[2].old_logprobs == tuple(
        values[6, : len(groups[1].completions[2].tokens)].tolist()
    )
    again = make_batch(stored)
    assert again.old_entropies_BT is None
    for ours, theirs in (
        (again.old_logprobs_BT, batch.old_logprobs_BT),
        (again.ref_logprobs_BT, batch.ref_logprobs_BT),
    ):
        assert ours is not None and theirs is not None
        assert torch.equal(ours[batch.sampled_BT], theirs[batch.sampled_BT])
