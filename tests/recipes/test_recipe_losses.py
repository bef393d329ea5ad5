"""A recipe's loss is that of the system it is named for, on the same random batch, in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.batch import make_batch
from groupwise.objective.assign import assign_advantages
from groupwise.objective.loss import policy_loss
from groupwise.recipe import list_recipes, load_recipe
from groupwise.types import Completion, Group, Problem
from recipe_formulas import FORMULAS, Answer

GROUPS, SIZE, LONGEST = 3, 4, 7


def random_answers(seed: int) -> list[Answer]:
    """Ragged answers in three groups, some cut off, log-probs far enough apart to be clipped."""
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float, length: int) -> Tensor:
        return scale * torch.randn(length, generator=g, dtype=torch.float64)

    answers = []
    for index in range(GROUPS * SIZE):
        length = int(torch.randint(1, LONGEST + 1, (1,), generator=g))
        logprobs = -normal(1.0, length).abs() - 0.1
        old, ref = logprobs + normal(0.35, length), logprobs + normal(0.4, length)
        answers.append(
            Answer(
                group=index // SIZE,
                reward=float(torch.randn(1, generator=g)),
                cut_off=index % 5 == 3,
                logprobs=logprobs.requires_grad_(),
                old=old.detach(),
                sampler=old.detach() + normal(0.6, length),
                ref=ref.detach(),
            )
        )
    return answers


def ours(name: str, answers: list[Answer]) -> Tensor:
    """The same batch as the package sees it: groups, padded tensors, one denominator."""
    config = load_recipe(name)
    objective = config.algorithm
    groups = [
        Group(Problem(f"p{n}", "?"), (1,), completions(members), {}, rewards(members))
        for n in range(GROUPS)
        for members in [[a for a in answers if a.group == n]]
    ]
    limit = config.rollout.max_completion_tokens
    made = make_batch(groups, mask_truncated=objective.mask_truncated, max_tokens=limit)
    scored = [a for g in assign_advantages(made, objective, {}).groups for a in g.advantages]
    kept = torch.tensor([not (objective.mask_truncated and a.cut_off) for a in answers])
    lengths = torch.tensor([len(a.logprobs) for a in answers])
    batch = replace(
        made,
        mask_BT=(torch.arange(LONGEST) < lengths[:, None]) & kept[:, None],
        advantages_BT=torch.tensor(scored, dtype=torch.float64)[:, None],
        old_logprobs_BT=padded([a.old for a in answers]),
        sampler_logprobs_BT=padded([a.sampler for a in answers]),
        ref_logprobs_BT=padded([a.ref for a in answers]) if objective.needs_reference else None,
    )
    return policy_loss(padded([a.logprobs for a in answers]), None, batch, objective)[0]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, LONGEST - len(row))) for row in rows])


def completions(members: list[Answer]) -> tuple[Completion, ...]:
    return tuple(
        Completion(
            tuple(range(len(a.logprobs))),
            tuple(a.sampler.tolist()),
            "length" if a.cut_off else "eos",
        )
        for a in members
    )


def rewards(members: list[Answer]) -> tuple[float, ...]:
    return tuple(a.reward for a in members)


def test_every_recipe_has_its_formula() -> None:
    assert FORMULAS.keys() == list_recipes().keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_are_those_of_the_system(name: str) -> None:
    for seed in range(3):
        answers = random_answers(seed)
        leaves = [a.logprobs for a in answers]
        expected, found = FORMULAS[name](answers), ours(name, answers)
        assert abs(found.item() - expected.item()) < 1e-9
        assert abs(expected.item()) > 1e-3  # there is something to agree on
        for theirs, mine in zip(
            torch.autograd.grad(expected, leaves, allow_unused=True, materialize_grads=True),
            torch.autograd.grad(found, leaves, allow_unused=True, materialize_grads=True),
            strict=True,
        ):
            assert torch.allclose(theirs, mine, rtol=0, atol=1e-9)


def test_a_wrong_setting_is_noticed() -> None:
    answers = random_answers(0)
    moved = [replace(a, ref=a.ref + 0.01) for a in answers]
    assert abs(ours("simple_grpo", moved).item() - FORMULAS["simple_grpo"](answers).item()) > 1e-5
    for name, other in (("lm_book", "simple_grpo"), ("cookbook", "demo"), ("qwen_gpu", "demo")):
        assert abs(ours(name, answers).item() - FORMULAS[other](answers).item()) > 1e-4
