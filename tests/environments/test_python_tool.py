"""Programs, as calls of a tool or as blocks: run in the sandbox, and what they print told."""

import asyncio
from types import ModuleType

import pytest

from environments.test_tools_and_trl import call, episode_of
from groupwise.environments import catalog, code_blocks
from groupwise.environments.base import Turn
from groupwise.environments.catalog import find_environment
from groupwise.environments.python_tool import MOST_CHARACTERS, python
from groupwise.errors import RewardError
from runs import small_config


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print(6 * 7)", "42"),
        ("def half(n):\n    return n / 2\nprint(half(9), 'km')", "4.5 km"),
        ("print(1)\n1 / 0", "1\nZeroDivisionError: division by zero"),
        ("print(", "SyntaxError: '(' was never closed"),
        ("6 * 7", "it printed nothing: use print()"),
        ("raise SystemExit", "it printed nothing: use print()"),
        ("try:\n    open('/etc/passwd')\nexcept OSError:\n    print('no')", "no"),
        ("print('x' * 10_000)", "x" * MOST_CHARACTERS + " ..."),
    ],
)
def test_a_program_is_answered_by_what_it_prints(code: str, told: str) -> None:
    answer = asyncio.run(python(code))
    assert answer == told or (answer.endswith(told) and "SyntaxError" in told)


def test_the_model_reads_the_result_in_its_next_turn() -> None:
    factory = find_environment(small_config("environment.functions=[python]").environment)
    assert factory is not None
    episode, shown = episode_of(factory, call("python", code="print(3 + 4)"), "It is 7.")
    assert "Runs a Python program" in shown
    assert any(m["role"] == "tool" and m["content"] == "7" for m in episode.messages)


@pytest.mark.parametrize(
    ("checks", "setting"),
    [(catalog, "environment.functions=[python]"), (code_blocks, "environment.kind=code_blocks")],
)
def test_a_machine_that_cannot_isolate_refuses_programs_before_the_run(
    checks: ModuleType, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot() -> str:
        raise RewardError("this machine cannot isolate")

    monkeypatch.setattr(checks, "check_isolation", cannot)
    with pytest.raises(RewardError, match="cannot isolate"):
        find_environment(small_config(setting).environment)


def block(code: str) -> str:
    return f"Let me see.\n```python\n{code}\n```"


def test_the_blocks_of_a_turn_are_one_program_whose_output_is_the_reply() -> None:
    factory = find_environment(small_config("environment.kind=code_blocks").environment)
    assert factory is not None
    turns = block("a = 3 + 4") + "\n" + block("print(a)"), "It is 7."
    episode, shown = episode_of(factory, *turns)
    told = [m["content"] for m in episode.messages if m["role"] == "user"]
    assert told[-1] == "```output\n7\n```"
    assert (len(episode.turns), episode.messages[-1]["content"]) == (2, "It is 7.")
    assert "tool" not in shown


@pytest.mark.parametrize(
    "turn",
    ["It is 7.", "```\nprint(7)\n```", "```python\nprint(7)", f"{block('print(7)')}</think>7"],
)
def test_a_turn_without_a_whole_program_is_the_last(turn: str) -> None:
    factory = find_environment(small_config("environment.kind=code_blocks").environment)
    assert factory is not None
    episode, _ = episode_of(factory, turn)
    assert len(episode.turns) == 1


def test_a_program_has_the_seconds_of_a_reply() -> None:
    factory = find_environment(small_config("environment.kind=code_blocks").environment)
    assert factory is not None
    episode, _ = episode_of(factory, block("print(7)"), seconds=0.01)
    assert "did not return within 0.01 s" in episode.error


def test_a_flood_of_blank_lines_in_a_block_that_never_ends_costs_nothing() -> None:
    """Looked for anew at each of them, the end of the block would take minutes."""
    turn = Turn("```python" + "\n" * 200_000)
    assert asyncio.run(code_blocks.CodeBlocks().step(turn)).done
