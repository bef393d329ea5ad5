"""Environments in processes: whatever one does costs its own episode, and nothing else."""

import asyncio
import gc
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from environments.faulty import FAULTS, Faulty, NeverClosed, alarm_tool
from environments.scripted import END, LIMITS, ScriptedEngine
from environments.templates import tokenizer_of
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.groups import Episodes
from groupwise.environments.processes import Workers, in_processes
from groupwise.environments.tools import tools_environment
from groupwise.errors import GroupwiseError
from groupwise.rewards import supervised
from groupwise.types import Episode, Group, Problem, Sampling

QUICK = replace(LIMITS, step_seconds=2.0)


@pytest.fixture(scope="module")
def factory() -> Iterator[EnvironmentFactory]:
    made = in_processes(EnvironmentFactory("Faulty", Faulty))
    yield made
    made.close()


def problem(fault: str | None = None) -> Problem:
    return Problem(f"problem {fault}", ({"role": "user", "content": "Go."},), {"fault": fault})


def play_all(factory: EnvironmentFactory, *problems: Problem, seed: int = 5) -> list[Group]:
    """One episode of each, side by side."""
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), QUICK)
    engine = ScriptedEngine(lambda prompt: "turn")

    async def run() -> list[Group]:
        groups = [runner.group(p, engine, (0,), [Sampling(200)], seed) for p in problems]
        return await asyncio.gather(*groups)

    return asyncio.run(run())


def episode(group: Group) -> Episode:
    (answer,) = group.completions
    assert answer.episode is not None
    return answer.episode


def first_reply(group: Group) -> dict[str, str]:
    said = episode(group).messages[1]["content"]
    return dict(re.findall(r"(\w+) (\S+)", said))


SAID = {
    "raises": "step() raised ZeroDivisionError: 'division by zero'",
    "exits": "step() raised SystemExit: '3'",
    "ends its process": "step() ended its process (exit code 3)",
    "crashes": "step() crashed its process (SIGSEGV)",
    "is killed": "step() crashed its process (SIGKILL)",
    "holds the lock": "step() did not return within 2 s",
    "hangs": "step() did not return within 2 s",
    "waits for ever": "step() did not return within 2 s",
    "sends half a message": "step() did not return within 2 s",
    "returns no reply": "step() returned",
    "returns what cannot be sent": "step() returned what cannot be sent",
    "lies about numbers": "step() did not return within 2 s",
    "raises at once": "reset() raised RuntimeError: 'no docker here'",
}


def test_every_fault_costs_its_own_episode_only(factory: EnvironmentFactory) -> None:
    groups = play_all(factory, *(problem(fault) for fault in SAID), *[problem()] * 4)
    for fault, group in zip(SAID, groups, strict=False):
        assert SAID[fault] in episode(group).error, fault
        assert group.completions[0].stop == "environment"
        assert episode(group).reward is None, "not 0, which would pay more than losing does"
    for group in groups[len(SAID) :]:
        assert episode(group).reward == 1.0 and not episode(group).error
    again = play_all(factory, *[problem()] * 4)
    assert [episode(group).reward for group in again] == [1.0] * 4, "what was killed is replaced"


def test_half_a_message_holds_up_no_other_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes are asked by one thread, which must not wait for the other half."""
    monkeypatch.setattr(supervised, "WHOLE_SECONDS", 8)
    factory = in_processes(EnvironmentFactory("Faulty", Faulty))
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), replace(LIMITS, step_seconds=3.0))
    engine = ScriptedEngine(lambda prompt: "turn")
    errors: list[str] = []

    async def play(fault: str | None) -> None:
        group = await runner.group(problem(fault), engine, (0,), [Sampling(200)], 5)
        errors.append(episode(group).error)

    async def run() -> None:
        stuck = asyncio.create_task(play("sends half a message"))
        await asyncio.sleep(0.5)
        await asyncio.gather(play(None), play(None), stuck)

    try:
        asyncio.run(run())
    finally:
        factory.close()
    assert errors == ["", "", "step() did not return within 3 s"]


def test_processes_are_not_ours_and_are_used_again(factory: EnvironmentFactory) -> None:
    (first,) = play_all(factory, problem())
    (second,) = play_all(factory, problem())
    assert first_reply(first)["process"] == first_reply(second)["process"] != str(os.getpid())
    assert int(first_reply(second)["made"]) > int(first_reply(first)["made"]), "imported once"


def test_episodes_of_a_group_draw_alike(factory: EnvironmentFactory) -> None:
    drawn = [first_reply(group)["random"] for group in play_all(factory, problem(), problem())]
    (other,) = play_all(factory, problem(), seed=6)
    assert drawn[0] == drawn[1] != first_reply(other)["random"]


def test_what_the_user_can_fix_stops_the_run(factory: EnvironmentFactory) -> None:
    with pytest.raises(GroupwiseError, match="no such row"):
        play_all(factory, problem("cannot be fixed here"))


def test_a_column_that_cannot_be_sent_is_named_with_what_to_do(factory: EnvironmentFactory) -> None:
    odd = Problem("odd", ({"role": "user", "content": "Go."},), {"fault": threading.Lock()})
    with pytest.raises(GroupwiseError, match=r"lock.*plain text, numbers, lists or dicts$"):
        play_all(factory, odd)


def test_a_tool_may_use_signals() -> None:
    """TRL's own example limits the time of its tool with SIGALRM: that needs the main thread."""
    factory = in_processes(tools_environment([alarm_tool]))
    call = '<tool_call>{"name": "alarm_tool", "arguments": {"seconds": 5}}</tool_call>'
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), QUICK)
    engine = ScriptedEngine(lambda prompt: "done" if "rang" in prompt else call)
    group = asyncio.run(runner.group(problem(), engine, (0,), [Sampling(400)], 5))
    runner.close()
    assert [m["content"] for m in episode(group).messages if m["role"] == "tool"] == ["rang"]


def alive(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(number: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(number) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(number)


@pytest.mark.parametrize("fault", ["leaves a child", "leaves a daemon"])
def test_closing_ends_every_process_and_what_it_started(fault: str) -> None:
    factory = in_processes(EnvironmentFactory("Faulty", Faulty))
    groups = play_all(factory, problem(fault), problem())
    child = re.search(r"child (\d+)", str(episode(groups[0]).messages))
    assert child is not None and alive(int(child.group(1)))
    factory.close()
    for number in (int(child.group(1)), *(int(first_reply(g)["process"]) for g in groups)):
        assert gone(number)


def test_the_process_that_is_forked_from_is_restarted() -> None:
    workers = Workers(Faulty)
    first = workers.take()
    workers._process._process.kill()
    workers._process.wait()
    assert gone(first.number), "they end with it"
    second = workers.take()
    assert alive(second.number)
    workers.close()
    assert gone(second.number)


def test_what_cannot_be_moved_runs_in_threads_and_says_so(caplog: Any) -> None:
    class Local(Faulty):
        pass

    with caplog.at_level(logging.WARNING, logger="groupwise"):
        factory = in_processes(EnvironmentFactory("Local", Local))
    assert "Local runs in threads of this process" in caplog.text
    (group,) = play_all(factory, problem())
    assert first_reply(group)["process"] == str(os.getpid())


def test_every_fault_is_tried() -> None:
    apart = {"leaves a child", "leaves a daemon", "cannot be fixed here"}
    assert set(FAULTS) - apart | {"raises at once"} == set(SAID)


def test_an_environment_that_does_not_close_ends_with_its_episode(caplog: Any) -> None:
    factory = in_processes(EnvironmentFactory("NeverClosed", NeverClosed))
    (group,) = play_all(factory, problem())
    process = int(first_reply(group)["process"])
    assert gone(process), "its process is ended"
    factory.close()
    gc.collect()
    assert "was destroyed but it is pending" not in caplog.text
