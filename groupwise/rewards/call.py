"""One reward over some answers, wherever that happens: in the worker process or in a thread.

Scores and progress go to a `Board` in shared memory as they come, so that nothing is lost when the
function hangs or takes its process down, and the parent can tell which answer it was at.
"""

import asyncio
import copy
import inspect
import math
import mmap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.rewards.base import Score, Signature, own_seconds
from groupwise.secrets import masked

CAPACITY = 65536
"""Answers that a board has room for: what one call may be asked to score."""

LARGEST_SCORE = 1e12
"""Beyond it a sum of squares leaves the range of float32, in which advantages are computed."""

_UNSCORED = math.inf  # no score is infinite, and none is NaN, so both are free to mean something
_NOTHING_TO_SAY = math.nan


@dataclass(frozen=True)
class Answers:
    """A batch, as columns of equal length. Conversations are lists of messages, as in TRL.

    Answers with the same number in `groups` answer one problem side by side.
    """

    prompts: list[Any]
    columns: list[dict[str, Any]]
    completions: list[str]
    groups: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Call:
    """Which reward, on which answers of the batch, and whether the first failure ends it."""

    reward: int
    picked: tuple[int, ...]
    stop_at_failure: bool
    timeout: float


@dataclass(frozen=True)
class Loaded:
    """A reward whose function has been imported."""

    function: Callable[..., Any]
    signature: Signature
    options: Mapping[str, Any]


class NotAScore(Exception):
    """A function returned something else than scores."""


class Board:
    """A counter that moves with every answer, and their scores, in memory that can be shared."""

    BYTES = 8 + 8 * CAPACITY

    def __init__(self, file_descriptor: int = -1) -> None:
        view = memoryview(mmap.mmap(file_descriptor, self.BYTES))
        self._progress = view[:8].cast("q")
        self._scores = view[8:].cast("d")

    def clear(self, count: int) -> None:
        assert count <= CAPACITY
        for slot in range(count):
            self._scores[slot] = _UNSCORED

    def write(self, slot: int, score: Score) -> None:
        self._scores[slot] = _NOTHING_TO_SAY if score is None else score
        self._progress[0] += 1

    def move(self) -> None:
        self._progress[0] += 1

    @property
    def progress(self) -> int:
        return self._progress[0]

    def scores(self, count: int) -> dict[int, Score]:
        """What has been scored so far, by slot."""
        known = ((slot, self._scores[slot]) for slot in range(count))
        return {s: None if math.isnan(v) else v for s, v in known if v != _UNSCORED}


Failed = Callable[[int | None, str], None]
"""Told of each failure: the answer's slot (None: of a call for several), and what happened."""


def perform(reward: Loaded, answers: Answers, call: Call, board: Board, failed: Failed) -> None:
    """Score the picked answers: slot i of the board gets the score of answer picked[i]."""
    if reward.signature.batch:
        _whole_batch(reward, answers, call, board, failed)
    elif reward.signature.asynchronous:
        try:
            asyncio.run(_side_by_side(reward, answers, call, board, failed))
        except BaseException as error:  # a function that stops the event loop itself
            failed(None, _what_happened(error, reward.function))
    else:
        _one_by_one(reward, answers, call, board, failed)


def _one_by_one(reward: Loaded, answers: Answers, call: Call, board: Board, failed: Failed) -> None:
    for slot, index in enumerate(call.picked):
        try:
            returned = reward.function(**_arguments(reward, answers, index))
            board.write(slot, as_score(_settled(returned)))
        except BaseException as error:
            failed(slot, _what_happened(error, reward.function))
            board.move()
            if call.stop_at_failure:
                return


async def _side_by_side(
    reward: Loaded, answers: Answers, call: Call, board: Board, failed: Failed
) -> None:
    """All at once. As long as one of them returns within the time limit, the others may go on.

    Functions with limits of their own have more time. The board moves while it lasts, so whoever
    watches this process waits as well, unless the event loop itself is blocked.
    """
    arguments = {index: _arguments(reward, answers, index) for index in call.picked}
    limit = call.timeout + max(own_seconds(reward.function, a) for a in arguments.values())

    async def attempt(slot: int, index: int) -> str | None:
        try:
            returned = await reward.function(**arguments[index])
            board.write(slot, as_score(returned))
        except BaseException as error:
            return _what_happened(error, reward.function)

    tasks = {asyncio.ensure_future(attempt(s, i)): s for s, i in enumerate(call.picked)}
    pending, left = set(tasks), limit
    while pending:
        some = min(left, call.timeout / 2)
        done, pending = await asyncio.wait(
            pending, timeout=some, return_when=asyncio.FIRST_COMPLETED
        )
        left = limit if done else left - some
        if not done and left > 0:
            board.move()
            continue
        trouble = {tasks[task]: text for task in done if (text := task.result()) is not None}
        if not done:
            trouble = {tasks[task]: hung(limit) for task in pending}
        for slot in sorted(trouble):
            failed(slot, trouble[slot])
            board.move()
        if not done or (trouble and call.stop_at_failure):
            return  # asyncio.run cancels those that are still pending


def _whole_batch(
    reward: Loaded, answers: Answers, call: Call, board: Board, failed: Failed
) -> None:
    """A function that yields its scores has the time limit for each step, not for all of them."""
    try:
        returned = _settled(reward.function(**_batch_arguments(reward, answers, call.picked)))
        count = len(call.picked)
        steps = inspect.isgenerator(returned)
        values = _yielded(returned, count) if steps else _as_list(returned, count)
        for slot, value in enumerate(values):
            try:
                score = as_score(value)
            except NotAScore as error:
                failed(slot, _what_happened(error, reward.function))
                if call.stop_at_failure:
                    return
            else:
                board.write(slot, score)
    except BaseException as error:
        failed(0 if len(call.picked) == 1 else None, _what_happened(error, reward.function))


def _arguments(reward: Loaded, answers: Answers, index: int) -> dict[str, Any]:
    accepts = reward.signature.accepts
    arguments = {n: _own_copy(v) for n, v in answers.columns[index].items() if accepts(n)}
    arguments.update(reward.options)
    arguments["completion"] = answers.completions[index]
    if accepts("prompt"):
        arguments["prompt"] = _own_copy(answers.prompts[index])
    return arguments


def _batch_arguments(reward: Loaded, answers: Answers, picked: Sequence[int]) -> dict[str, Any]:
    accepts = reward.signature.accepts
    columns = [answers.columns[index] for index in picked]
    names = {name: None for line in columns for name in line}  # a dict keeps their order
    arguments: dict[str, Any] = {
        name: _own_copy([line.get(name) for line in columns]) for name in names if accepts(name)
    }
    arguments.update(reward.options)
    prompts = [answers.prompts[index] for index in picked]
    texts = [answers.completions[index] for index in picked]
    if accepts("prompts"):
        arguments["prompts"] = _own_copy(prompts)
    if reward.signature.names("group_ids"):
        arguments["group_ids"] = [answers.groups[index] for index in picked]
    if reward.signature.names("texts"):
        arguments["texts"] = texts
    if accepts("completions"):
        arguments["completions"] = [
            text if isinstance(prompt, str) else _conversation(text, answers.columns[index])
            for index, prompt, text in zip(picked, prompts, texts, strict=True)
        ]
    return arguments


def _conversation(text: str, columns: Mapping[str, Any]) -> list[Any]:
    """The messages of an answer; of an episode all that were exchanged, as in TRL."""
    episode = columns.get("episode")
    if isinstance(episode, Mapping) and "messages" in episode:
        return _own_copy(episode["messages"])
    return [{"role": "assistant", "content": text}]


def _own_copy(value: Any) -> Any:
    """What a function does to its arguments must not be seen by the rewards after it."""
    if isinstance(value, str | int | float | None):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # an open file, a lock: only functions of this process are given such
        return value


def as_score(value: Any) -> Score:
    """A finite float or None. Takes bool, int, float and whatever else has __float__ (tensors)."""
    if value is None:
        return None
    if not isinstance(value, float):
        if not hasattr(value, "__float__"):
            raise NotAScore(f"returned {_shown(value)}, which is not a number")
        try:
            value = float(value)
        except OverflowError:
            raise NotAScore("returned an integer that is too large for a float") from None
    if not math.isfinite(value):
        raise NotAScore(f"returned {value}")
    if abs(value) > LARGEST_SCORE:
        raise NotAScore(f"returned {value:g}, which is beyond {LARGEST_SCORE:g}")
    return value


def _as_list(returned: Any, count: int) -> list[Any]:
    if returned is None or isinstance(returned, str | bytes | Mapping):
        raise NotAScore(f"returned {_shown(returned)}, not a list of scores")
    try:
        values = list(returned)
    except TypeError:
        raise NotAScore(f"returned {_shown(returned)}, not a list of scores") from None
    if len(values) != count:
        answers = "1 completion" if count == 1 else f"{count} completions"
        raise NotAScore(f"returned {len(values)} scores for {answers}")
    return values


def _yielded(scores: Iterator[Any], count: int) -> Iterator[Any]:
    given = 0
    for given, score in enumerate(scores, start=1):
        if given > count:
            break
        yield score
    if given != count:
        more = "more than " if given > count else ""
        raise NotAScore(f"yielded {more}{min(given, count)} scores for {count} completions")


def _settled(returned: Any) -> Any:
    if not inspect.isawaitable(returned):
        return returned

    async def settle() -> Any:
        return await returned

    return asyncio.run(settle())


def _what_happened(error: BaseException, function: Callable[..., Any]) -> str:
    """The exception and the line of the user's file that it comes from."""
    if isinstance(error, NotAScore):
        return masked(str(error))
    try:
        text = masked(str(error))
    except Exception:
        text = "(its message cannot be shown)"
    text = " ".join(text.split())
    text = text if len(text) <= 500 else f"{text[:500]}…"
    what = f"raised {type(error).__name__}" + (f": {text}" if text else "")
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if frame.filename != __file__]
    own = getattr(getattr(function, "__code__", None), "co_filename", None)
    shown = [frame for frame in frames if frame.filename == own] or frames
    if not shown:
        return what
    return f"{what} ({Path(shown[-1].filename).name}:{shown[-1].lineno}, in {shown[-1].name})"


def hung(seconds: float) -> str:
    return f"did not return within {seconds:g} s"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "something without a repr"
    return f"{text if len(text) <= 80 else text[:80] + '…'} ({type(value).__name__})"
