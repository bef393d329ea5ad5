"""Every reward on every answer, in isolation: a reward that fails names the answer it failed on.

Functions that another process can import run in one worker process that lives as long as the
scorer; the rest run in a thread here. Each answer has `timeout` seconds. A function with TRL's
signature has them for its one call. If that call fails as a whole, it is called with one answer at
a time to find the one that does it; with `on_error="skip"` the others' scores are those.

An asynchronous function says that it waits for something, so it gets a worker of its own: while a
judge or a program takes its time, the other rewards go on. Within one worker they take turns. With
several `processes`, functions that score one answer at a time share the answers out among them.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from groupwise.errors import RewardError, quoted
from groupwise.rewards.base import Reward, Score, Signature, check_arguments, signature_of
from groupwise.rewards.call import CAPACITY, LARGEST_SCORE, Answers, Call
from groupwise.rewards.isolation import Runner, RunnerThread, WorkerProcess, importable
from groupwise.types import Problem

logger = logging.getLogger("groupwise")

Place = tuple[Runner, int]
"""What runs a reward, and the reward's position there."""
Part = tuple[int, Place, range]
"""A reward's number, and the answers that it scores at a place."""

NOT_COLUMNS = ("prompt", "prompts", "completion", "completions", "group_ids")


class Scorer:
    """with Scorer([Reward("right", is_right)], timeout=30, on_error="stop") as scorer:
        scorer.score([problem, problem], ["<answer>4</answer>", "no idea"])  # {"right": [1.0, 0.0]}

    Loading fails early: a function that cannot be found or called raises here, not at step 1.
    `errors` counts what `on_error="skip"` has cost so far.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        timeout: float,
        on_error: Literal["stop", "skip"],
        *,
        processes: int = 1,
    ) -> None:
        self.rewards = tuple(rewards)
        names = [reward.name for reward in self.rewards]
        if len(set(names)) < len(names):
            raise RewardError(f"each reward needs a name of its own, not {names}")
        self.timeout = timeout
        self.on_error: Literal["stop", "skip"] = on_error
        self.errors = 0
        self._turn = threading.Lock()
        self._processes = processes
        self._workers: list[WorkerProcess] = []
        """The first runs all functions but asynchronous ones, the others those of one answer."""
        self._own_workers: list[WorkerProcess] = []
        self._thread = RunnerThread()
        self._skipped: list[tuple[int, str]] = []
        """The number of a reward, and a line about its failure."""
        self._places: list[list[Place]] = []
        """For each reward, what runs it and its position there; several share the answers out."""
        self._signatures: list[Signature] = []
        try:
            for reward in self.rewards:
                runners, signature = self._load(reward)
                self._places.append([(runner, runner.count - 1) for runner in runners])
                self._signatures.append(signature)
        except BaseException:
            self.close()
            raise

    @property
    def wants_ids(self) -> bool:
        """Whether a reward names `completion_ids`, which are then one more column."""
        return any("completion_ids" in (*s.required, *s.optional) for s in self._signatures)

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. Closing twice is fine."""
        for worker in (*self._workers, *self._own_workers):
            worker.close()
        self._workers, self._own_workers = [], []

    def score(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> dict[str, list[Score]]:
        """By reward, the score of each answer: completions[i] answers problems[i].

        Neighbouring answers to one problem are a group. Threads take turns.
        """
        with self._turn:
            return self._score_batch(problems, completions)

    def _score_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> dict[str, list[Score]]:
        assert len(problems) == len(completions), (len(problems), len(completions))
        columns = {name for p in problems for name in p.columns} - set(NOT_COLUMNS)
        if not completions or not self.rewards:  # an environment may give the only reward
            return {reward.name: [] for reward in self.rewards}
        for reward, signature in zip(self.rewards, self._signatures, strict=True):
            check_arguments(reward, signature, columns)
            _check_each(reward, signature, problems)
        wanted = {c for c in columns if any(s.accepts(c) for s in self._signatures)} | {"episode"}
        answers = _answers(problems, completions, wanted)
        parts_of: dict[Runner, list[Part]] = {}
        for number, places in enumerate(self._places):
            for place, picked in _shared_out(len(completions), places):
                parts_of.setdefault(place[0], []).append((number, place, picked))
        scores: list[dict[int, Score]] = [{} for _ in self.rewards]

        def score_at(runner: Runner) -> None:
            runner.set_answers(answers)
            for number, place, picked in parts_of[runner]:
                for start in range(0, len(picked), CAPACITY):
                    some = picked[start : start + CAPACITY]
                    scores[number] |= self._score(number, place, some, problems, completions)

        try:
            _side_by_side(score_at, list(parts_of))
        finally:
            # In the recipe's order, whichever runner was the first to fail.
            for _, line in sorted(self._skipped, key=lambda item: item[0]):
                logger.warning("%s; left unscored (on_reward_error: skip)", line)
            self.errors += len(self._skipped)
            self._skipped.clear()
        indices = range(len(completions))
        return {
            reward.name: [known[index] for index in indices]
            for reward, known in zip(self.rewards, scores, strict=True)
        }

    def _load(self, reward: Reward) -> tuple[Sequence[Runner], Signature]:
        function = reward.function
        reference = function if isinstance(function, str) else importable(function)
        if reference is not None:
            try:
                return self._load_in_processes(reference, reward.options)
            except RewardError:
                if isinstance(function, str):
                    raise
        assert not isinstance(function, str)
        thread = RunnerThread() if signature_of(function).asynchronous else self._thread
        return [thread], thread.load(function, reward.options)

    def _load_in_processes(
        self, reference: str, options: Mapping[str, Any]
    ) -> tuple[Sequence[Runner], Signature]:
        if not self._workers:
            self._workers.append(WorkerProcess(shared=True))
        signature = self._workers[0].load(reference, options)
        if signature.asynchronous:
            self._own_workers.append(WorkerProcess())
            return self._own_workers[-1:], self._own_workers[-1].load(reference, options)
        if signature.batch:
            return self._workers[:1], signature
        while len(self._workers) < self._processes:
            self._workers.append(WorkerProcess(shared=True))
        for worker in self._workers[1:]:
            worker.load(reference, options)
        return self._workers, signature

    def _score(
        self,
        number: int,
        place: Place,
        picked: Iterable[int],
        problems: Sequence[Problem],
        completions: Sequence[str],
    ) -> dict[int, Score]:
        """The scores of the picked answers, whatever the function does to us meanwhile."""
        runner, position = place
        signature = self._signatures[number]
        together = signature.batch or signature.asynchronous
        scores: dict[int, Score] = {}

        def fail(index: int, what: str) -> None:
            scores[index] = None
            self._failed(number, what, index, problems[index], completions[index])

        rest = list(picked)
        while rest:
            call = Call(position, tuple(rest), self.on_error == "stop", self.timeout)
            outcome = runner.run(call)
            scores |= {rest[slot]: score for slot, score in outcome.scores.items()}
            for slot, what in outcome.failures.items():
                fail(rest[slot], what)
            rest = [index for index in rest if index not in scores]
            if outcome.stuck is None:
                assert not rest
                break
            if not together or len(rest) == 1:
                fail(rest.pop(0), outcome.stuck)
                continue
            failures = self._failures_of(number)
            for index in rest:
                scores |= self._score(number, place, [index], problems, completions)
            if self._failures_of(number) == failures:
                self._failed(number, f"{outcome.stuck}, though on none of them alone", len(rest))
            break
        return scores

    def _failed(
        self,
        number: int,
        what: str,
        index: int,
        problem: Problem | None = None,
        completion: str | None = None,
    ) -> None:
        """Raise, or count and log, as `on_error` says. Without a completion, `index` is a count."""
        where = f"{index} answers together"
        if problem is not None:
            where = f"answer {index} (to problem {quoted(problem.id, 60)})"
        lines = [f"reward {self.rewards[number].name!r} failed on {where}: it {what}"]
        if completion is not None:
            lines.append(f"the completion: {quoted(completion, 300)}")
        if self.on_error == "skip":
            self._skipped.append((number, "; ".join(lines)))
            return
        lines.append(f"fix: {self._fix(what)}, or set on_reward_error: skip to leave it unscored")
        raise RewardError("\n  ".join(lines))

    def _failures_of(self, number: int) -> int:
        return sum(reward == number for reward, _ in self._skipped)

    def _fix(self, what: str) -> str:
        if what.startswith("did not return"):
            return f"make the function faster, raise reward_timeout (now {self.timeout:g} s)"
        if what.startswith("returned"):
            limit = f"from {-LARGEST_SCORE:g} to {LARGEST_SCORE:g}"
            return f"return one number {limit} for each completion (None: does not apply)"
        if "its process" in what:
            return "find what ends the process when the function is called on this text"
        return "handle such text in the function"


def _side_by_side(score_at: Callable[[Runner], None], runners: Sequence[Runner]) -> None:
    """All runners at once. Where several raise, the first one's error is raised."""
    if len(runners) == 1:
        return score_at(runners[0])
    with ThreadPoolExecutor(len(runners), "rewards") as threads:
        running = [threads.submit(score_at, runner) for runner in runners]
    for future in running:
        future.result()


def _shared_out(count: int, places: Sequence[Place]) -> Iterator[tuple[Place, range]]:
    """Of so many answers, neighbours to each place: _shared_out(8, [a, b]): a 0-3, b 4-7."""
    for n, place in enumerate(places):
        picked = range(n * count // len(places), (n + 1) * count // len(places))
        if picked:
            yield place, picked


def _check_each(reward: Reward, signature: Signature, problems: Sequence[Problem]) -> None:
    """A function called per answer needs its columns in every problem, not in some."""
    if signature.batch or not signature.required:
        return
    for problem in {id(problem): problem for problem in problems}.values():
        check_arguments(reward, signature, problem.columns)


def _answers(problems: Sequence[Problem], completions: Sequence[str], wanted: set[str]) -> Answers:
    """Problems are turned into plain values once each: pickle then sends shared ones once too."""
    plain: dict[int, tuple[Any, dict[str, Any]]] = {}
    for problem in problems:
        if id(problem) not in plain:
            prompt = problem.prompt
            plain[id(problem)] = (
                prompt if isinstance(prompt, str) else [dict(message) for message in prompt],
                {name: v for name, v in problem.columns.items() if name in wanted},
            )
    lines = [plain[id(problem)] for problem in problems]
    groups: list[int] = []
    for before, problem in zip((None, *problems), problems, strict=False):
        same = before is not None and before.id == problem.id
        groups.append(groups[-1] + (not same) if groups else 0)
    return Answers([p for p, _ in lines], [c for _, c in lines], list(completions), groups)
