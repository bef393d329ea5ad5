"""What each system's own rewards give for strings that are kept, and what ours give.

`original` in originals.jsonl is worked out from what the system says of its reward, not by our
code. Where ours is meant to differ, `ours` says how and `why` is a line of the recipe's page.
"""

import json
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from groupwise.recipe import load_recipe
from groupwise.rewards.catalog import BUILTIN
from groupwise.rewards.cot import cot_bonus

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "originals.jsonl").read_text().splitlines()
]
PAGES = Path(__file__).parents[2] / "docs" / "recipes"
SYSTEMS = ("cookbook", "nano_aha_moment", "grpo_zero", "simple_grpo", "lm_book", "qwen_gpu")


def ours(row: dict[str, Any]) -> float:
    module, _, name = BUILTIN[row["reward"]].partition(":")
    function = getattr(import_module(module), name)
    columns = {column: row[column] for column in signature(function).parameters if column in row}
    return function(row["text"], **columns)


@pytest.mark.parametrize("reward", sorted({row["reward"] for row in ROWS}))
def test_a_reward_gives_the_originals_number_or_a_stated_other_one(reward: str) -> None:
    for row in ROWS:
        if row["reward"] == reward:
            assert ours(row) == pytest.approx(row.get("ours", row["original"])), row


def test_every_difference_is_on_the_recipes_page() -> None:
    differing = {(row["recipe"], row["why"]) for row in ROWS if "ours" in row}
    assert all(row["ours"] != row["original"] for row in ROWS if "ours" in row)
    pages = {name: " ".join((PAGES / f"{name}.md").read_text().split()) for name, _ in differing}
    assert not [(name, why) for name, why in differing if why not in pages[name]]


@pytest.mark.parametrize("recipe", SYSTEMS)
def test_strings_are_kept_for_every_reward_of_a_system(recipe: str) -> None:
    used = {reward.name for reward in load_recipe(recipe).rewards if reward.weight}
    assert used == {row["reward"] for row in ROWS if row["recipe"] == recipe}


def test_each_pattern_of_a_chain_of_thought_is_paid() -> None:
    """Numbered steps, calculations and reasoning words; no number is stated for them."""
    plain = "He sells the eggs that are left over."
    steps = "1. He counts the eggs.\n2. He sells the eggs that are left over."
    calculated = f"{plain} 16 - 7 = 9, 9 * 2 = 18."
    reasoned = f"First, {plain} Therefore it is so, because they cost two."
    assert cot_bonus(plain) == 0.0
    assert all(cot_bonus(text) > 0.0 for text in (steps, calculated, reasoned))
    assert cot_bonus(f"{steps} 16 - 7 = 9. Therefore, because of this, then it is so.") > max(
        cot_bonus(text) for text in (steps, reasoned)
    )
    assert cot_bonus(calculated.replace("18", "19")) < cot_bonus(calculated)
