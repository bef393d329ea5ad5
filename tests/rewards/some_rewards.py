"""Reward functions for the scorer's tests. Those that misbehave do so on the text "bad"."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from groupwise.errors import RewardError
from groupwise.rewards.base import with_own_limits


def right(completion: str, answer: str) -> bool:
    return completion == answer


def length(completion: str, limit: int = 10) -> float | None:
    return None if not completion else min(len(completion), limit)


def seen_prompt(completion: str, prompt: object) -> float:
    return 1.0 if prompt == [{"role": "user", "content": "hi"}] else 0.0


def everything(completion: str, **columns: object) -> int:
    return len(columns)


def process_id(completion: str) -> int:
    return os.getpid()


def has_torch(completion: str) -> bool:
    return "torch" in sys.modules


def prints(completion: str) -> float:
    print("printed by a reward")
    os.write(1, b"written by a reward\n")
    return 1.0


def hangs(completion: str) -> float:
    while completion == "bad":
        pass
    return 1.0


def hangs_in_c(completion: str) -> float:
    if completion == "bad":
        re.match(r"(a+)+$", "a" * 60 + "b")
    return 1.0


def exits(completion: str) -> float:
    if completion == "bad":
        os._exit(3)
    return 1.0


def aborts(completion: str) -> float:
    if completion == "bad":
        os.abort()
    return 1.0


def quits(completion: str) -> float:
    if completion == "bad":
        sys.exit("goodbye")
    return 1.0


def raises(completion: str) -> float:
    if completion == "bad":
        raise KeyError("no such thing")
    return 1.0


def nan(completion: str) -> float:
    return float("nan") if completion == "bad" else 1.0


def infinite(completion: str) -> float:
    return float("inf") if completion == "bad" else 1.0


def words(completion: str) -> object:
    return "good" if completion == "bad" else 1.0


def slow(completion: str) -> float:
    time.sleep(0.2)
    return 1.0


async def awaits(completion: str) -> float:
    await asyncio.sleep(0.2)
    return float(len(completion))


async def awaits_forever(completion: str) -> float:
    await asyncio.sleep(3600 if completion == "bad" else 0.01)
    return 1.0


async def blocks_the_loop(completion: str) -> float:
    await asyncio.sleep(0.01)
    return hangs(completion)


async def awaits_and_raises(completion: str) -> float:
    await asyncio.sleep(0.01)
    return raises(completion)


def trl_lengths(prompts: list, completions: list, answer: list, **kwargs: object) -> list[float]:
    """Plain: completions are texts. Conversational: each is a list of one assistant message."""
    assert len(prompts) == len(completions) == len(answer)
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(len(text)) for text in texts]


def trl_roles(prompts: list, completions: list, **kwargs: object) -> list[float | None]:
    roles = [(p[-1]["role"], c[0]["role"]) for p, c in zip(prompts, completions, strict=True)]
    return [1.0 if pair == ("user", "assistant") else None for pair in roles]


def trl_count(completions: list, **kwargs: object) -> list[int]:
    return [len(completions)] * len(completions)


async def trl_awaits(completions: list, **kwargs: object) -> list[float]:
    await asyncio.sleep(0.01)
    return [2.0] * len(completions)


def trl_hangs(completions: list, **kwargs: object) -> list[float]:
    return [hangs(text) for text in completions]


def trl_raises(completions: list, **kwargs: object) -> list[float]:
    return [raises(text) for text in completions]


def trl_nan(completions: list, **kwargs: object) -> list[float]:
    return [nan(text) for text in completions]


def trl_drops(completions: list, **kwargs: object) -> list[float]:
    return [1.0 for text in completions if text != "bad"]


def trl_needs_one_answer(completions: list, **kwargs: object) -> list[float]:
    return [1.0]


def wants_ids(completions: list, completion_ids: list) -> list[float]:
    return [1.0] * len(completions)


def no_reward(text: str) -> float:
    return 1.0


constant = 5


async def waits_a_second(completion: str) -> float:
    await asyncio.sleep(1.0)
    return 1.0


def enormous(completion: str) -> float:
    return 1e308 if completion == "bad" else 1.0


def ends_after_its_last_score(completions: list[str]) -> Iterator[float]:
    yield from [1.0] * len(completions)
    os._exit(7)


def closes_descriptors(completion: str) -> float:
    if completion == "bad":
        os.closerange(3, 200)
        time.sleep(30)
    return 1.0


def closes_descriptors_later(completion: str) -> float:
    threading.Timer(0.2, os.closerange, (3, 200)).start()
    threading.Timer(30, print).start()
    return os.getpid()


def spoils(completion: str, words: list[str], prompt: list[dict[str, str]]) -> float:
    words.append(completion)
    prompt[0]["content"] = "spoilt"
    return len(words)


def spoils_all(completions: list[str], words: list[list[str]], **columns: object) -> list[float]:
    for line in words:
        line.clear()
    return [1.0] * len(completions)


def sees(completion: str, words: list[str], prompt: list[dict[str, str]]) -> float:
    return len(words) if prompt[0]["content"] == "hi" else -1.0


def _lacks_something() -> None:
    raise RewardError("this machine lacks something")


@with_own_limits(check=_lacks_something, seconds=lambda **_: 0.0)
async def not_on_this_machine(completion: str) -> float:
    return 1.0


def starts_a_daemon(completion: str) -> int:
    """In a session of its own, with nothing of ours in its environment, and not our child."""
    script = "setsid sleep 3600 >/dev/null 2>&1 & echo $!"
    return int(subprocess.check_output(["/bin/sh", "-c", script], env={"PATH": os.defpath}))


def forks(completion: str) -> float:
    os.fork()
    return 1.0


def writes_to_all_descriptors(completion: str) -> float:
    if completion == "bad":
        for number in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(number, b"{}\n")
    return 1.0
