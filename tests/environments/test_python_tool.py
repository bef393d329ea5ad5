"""Programs as a tool: run in the sandbox, and what they print told to the model."""

import asyncio

import pytest

from environments.test_tools_and_trl import call, episode_of
from groupwise.environments import catalog
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


def test_a_machine_that_cannot_isolate_refuses_the_tool_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot() -> str:
        raise RewardError("this machine cannot isolate")

    monkeypatch.setattr(catalog, "check_isolation", cannot)
    with pytest.raises(RewardError, match="cannot isolate"):
        find_environment(small_config("environment.functions=[python]").environment)
