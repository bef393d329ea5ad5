"""What an environment is: what answers the model's turns, and how well the conversation went.

    class Guess(Environment):                           # one object for each episode
        tools = ()
        async def reset(self, problem, seed): ...       # what stands behind the prompt, if anything
        async def step(self, turn): ...                 # the reply to what the model wrote
        async def score(self): return {"won": 1.0}      # once, when the episode has ended
        async def close(self): ...

An environment has a process (or a thread) and an event loop of its own, so it may block: that costs
its episode alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from groupwise.errors import GroupwiseError, quoted, type_name
from groupwise.types import Episode, Problem, StopReason

ChatMessage = Mapping[str, Any]
"""{"role": "tool", "name": "add", "content": "7"}; an assistant's may have `tool_calls`."""

Thread = Literal["own", "shared", "sampling"]
"""own: each episode has a thread to itself, where code may block. shared: all of them have one, for
code that awaits what it waits for. sampling: the thread that samples, which nothing there may hold
up; a call has no time limit there."""

REPLY_ROLES = ("user", "tool", "system")
LARGEST_REWARD = 1e12


class EnvironmentFailed(Exception):
    """An environment raised, hung, or returned what is no reply: its episode ends here."""


class EnvironmentBusy(Exception):
    """Raised by `reset` where all sessions of a server are taken: the episode queues again."""


class AllEpisodesFailed(GroupwiseError):
    """No episode of a step got through its environment: there is nothing to learn from."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as chat templates show it; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}, hash=False
    )

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True)
class ToolCall:
    """What the model asked a tool for. With an `error` it could not be read, and is not made.

    ToolCall("call00000", "add", {"a": 3, "b": 4})
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Turn:
    """What the model wrote in one go, parsed once: its text without the calls, and the calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "eos"


@dataclass(frozen=True)
class Reply:
    """What the environment answers: messages to append, and this turn's reward if it has one.

    A reply to `reset` may be the whole conversation to begin with: `replaces` the prompt.
    """

    messages: tuple[ChatMessage, ...] = ()
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    replaces: bool = False


class Environment(Protocol):
    """One object for each episode. Who derives from it writes `step`, and what else is needed.

    A turn that the limit on tokens cut off is no answer, and is not stepped; with an attribute
    `takes_cut_turns = True` it is (its `stop` is "length"), and ends the episode all the same.
    """

    tools: Sequence[ToolSpec] = ()
    """What the chat template shows the model. Read after `reset`."""

    async def reset(self, problem: Problem, seed: int) -> Reply:
        """Begin. Episodes of one group get the same seed, and must begin alike."""
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        """The reply to a turn; `done` ends the episode."""
        ...

    async def score(self) -> Mapping[str, float | None]:
        """How it went, called once and last. None: does not apply, which is not 0."""
        return {}

    async def close(self) -> None:
        """The episode is over, however it ended."""


@dataclass(frozen=True)
class EnvironmentFactory:
    """EnvironmentFactory("Guess", lambda problem: Guess())"""

    name: str
    """Of the reward that the environment's own scores become."""
    make: Callable[[Problem], Any]
    """Gives an Environment; where `run` plays episodes, whatever that takes (an agent)."""
    scores: bool = True
    """Whether it gives rewards of its own, beside those of the recipe."""
    tools: tuple[ToolSpec, ...] = ()
    """What the model may call, where that is known before an episode begins."""
    isolate: bool = True
    """Whether a process of its own is of use: not to what only talks to a server."""
    thread: Thread = "own"
    """Where its code runs in this process."""
    ended: Callable[[Episode, Any], None] | None = None
    """Told of each episode that has ended, with its environment."""
    queue: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    """What an episode waits for before it begins, and leaves when it has ended."""
    close: Callable[[], None] = lambda: None
    """The run is over."""
    run: Callable[..., Any] | None = None
    """What plays an episode in place of EpisodeRun: agent.AgentRun, where it is not the
    environment that answers the model but an agent that asks it."""


def checked_reply(value: Any) -> Reply:
    """The reply, if it is one: an environment is code from outside, and may return anything."""
    if not isinstance(value, Reply):
        raise EnvironmentFailed(f"returned {_shown(value)}, not a Reply")
    if not isinstance(value.done, bool):
        raise EnvironmentFailed(f"returned a Reply whose `done` is {_shown(value.done)}")
    for message in value.messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        example = value.replaces and role == "assistant"
        if (role not in REPLY_ROLES and not example) or not isinstance(message.get("content"), str):
            raise EnvironmentFailed(
                f"returned the message {_shown(message)}: its role must be one of "
                f"{', '.join(REPLY_ROLES)}, and its content text"
            )
    return Reply(
        tuple({str(k): v for k, v in message.items()} for message in value.messages),
        checked_reward(value.reward),
        value.done,
        value.info,
        value.replaces,
    )


def checked_scores(value: Any) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        raise EnvironmentFailed(f"returned {_shown(value)} as scores, not a mapping by name")
    return {str(name): checked_reward(score) for name, score in value.items()}


def checked_reward(value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise EnvironmentFailed(f"gave the reward {_shown(value)}, which is not a number") from None
    if not math.isfinite(number) or abs(number) > LARGEST_REWARD or isinstance(value, str):
        raise EnvironmentFailed(f"gave the reward {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    try:
        return quoted(repr(value), 80)
    except Exception:
        return f"{type_name(value)} without a repr"
