"""An engine that writes what a test says, and environments that behave as a test says."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from environments.templates import tokenizer_of
from groupwise.environments.base import EnvironmentFactory, Reply, ToolSpec, Turn
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.groups import Episodes
from groupwise.types import Completion, Group, Problem, Request, Sampling

END = 2
LIMITS = EpisodeLimits(max_tokens=200, step_seconds=5.0, episode_seconds=30.0)
PROBLEM = Problem("p", ({"role": "user", "content": "What is 3+4?"},), {"answer": "7"})


class ScriptedEngine:
    """`write(prompt)` is the text of the next turn; an end-of-sequence token follows it."""

    def __init__(self, write: Callable[[str], str], name: str = "tiny", version: int = 0) -> None:
        self.write, self.tokenizer, self.version = write, tokenizer_of(name), version
        self.requests: list[Request] = []
        self.answers: list[Completion] = []

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        self.requests.append(request)
        await asyncio.sleep(0)
        text = self.write(self.tokenizer.decode(list(request.prompt_tokens)))
        tokens = (*self.tokenizer(text, add_special_tokens=False)["input_ids"], END)
        stop = "eos" if len(tokens) <= sampling.max_tokens else "length"
        tokens = tokens[: sampling.max_tokens]
        logprobs = tuple(-0.25 for _ in tokens)
        self.answers.append(Completion(tokens, logprobs, stop, version=self.version))
        return (self.answers[-1],) * len(request.keys)

    def load_weights(self, version: int, weights: Any) -> None: ...

    def close(self) -> None: ...


class Scripted:
    """Replies with `step(turn)`; what else it does can be replaced."""

    def __init__(
        self,
        step: Callable[[Turn], Any],
        scores: Any = None,
        first: Reply | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        self._step, self._scores, self._first, self.tools = step, scores, first, tuple(tools)
        self.closed = False

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return self._first or Reply()

    async def step(self, turn: Turn) -> Any:
        result = self._step(turn)
        return await result if asyncio.iscoroutine(result) else result

    async def score(self) -> Mapping[str, float | None]:
        return {} if self._scores is None else self._scores

    async def close(self) -> None:
        self.closed = True


def episodes(
    make: Callable[[Problem], Any],
    limits: EpisodeLimits = LIMITS,
    name: str = "tiny",
    **options: Any,
) -> Episodes:
    factory = EnvironmentFactory("Scripted", make)
    return Episodes(factory, tokenizer_of(name), (END,), limits, **options)


def play(
    engine: Any, runner: Episodes, count: int = 1, problem: Problem = PROBLEM, tokens: int = 200
) -> Group:
    samplings = [Sampling(max_tokens=tokens)] * count
    return asyncio.run(runner.group(problem, engine, tuple(range(count)), samplings, seed=5))


def hang() -> None:
    """For ever, without giving way to anybody."""
    threading.Event().wait(3600)


def user(text: str, **more: Any) -> Reply:
    return Reply(({"role": "user", "content": text},), **more)
