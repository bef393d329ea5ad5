"""Agents: programs and functions that own the loop, and ask the model over an OpenAI-like URL.

An `Environment` answers the model; an agent asks it. So an episode of an agent is played by a
runner of its own, `AgentRun`, in place of `EpisodeRun`: both give segments, as a rule one. What was
sampled is recorded by the gateway (gateway_session.py), not told by the agent.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from groupwise.environments.agent_program import ProgramAgent
from groupwise.environments.base import (
    ChatMessage,
    EnvironmentFactory,
    EnvironmentFailed,
    checked_scores,
)
from groupwise.environments.episode import EpisodeInputs, Segment, as_messages, whole_episode
from groupwise.environments.gateway_app import local_gateway
from groupwise.environments.gateway_request import same_message
from groupwise.environments.gateway_session import Session
from groupwise.environments.threads import EpisodeThread
from groupwise.errors import ConfigError, quoted
from groupwise.secrets import masked
from groupwise.types import Completion, Episode, Problem, StopReason

AgentFunction = Callable[[str, str, Problem], Any]
"""run(base_url, api_key, problem): async or not; gives a reward, {"scores": {...}}, or None."""

LEAVE_SECONDS = 1.0
"""That a function has to end when it is cancelled; one that blocks is left behind."""
POLL_SECONDS = 0.25
"""How often an agent's time is looked at."""


@dataclass(frozen=True)
class FunctionAgent:
    """A Python function in a thread with an event loop of its own: it may block there."""

    function: AgentFunction

    async def run(self, base_url: str, api_key: str, problem: Problem, seed: int) -> Any:
        """A whole episode: {"reward": 1.0}, {"scores": {...}} or nothing. Raises EnvironmentFailed.
        Cancelled, it leaves nothing behind."""
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

        async def work() -> Any:
            running.append((asyncio.get_running_loop(), asyncio.current_task()))
            value = self.function(base_url, api_key, problem)
            return await value if inspect.isawaitable(value) else value

        thread = EpisodeThread(f"agent of {problem.id}"[:60])
        call = asyncio.ensure_future(thread.call("the function", work, float("inf")))
        try:
            value = await asyncio.shield(call)
        except asyncio.CancelledError:
            for loop, task in running:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            await asyncio.wait({call}, timeout=LEAVE_SECONDS)
            raise
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            thread.close()
        return {"reward": value} if isinstance(value, int | float) else value


def agent_environment(
    agent: Sequence[str] | AgentFunction, *, override_sampling: bool = False, name: str = "agent"
) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=agent_environment(["python", "agent.py"]))`.

    A program with its arguments, or a function `run(base_url, api_key, problem)`.
    `override_sampling`: what requests say of temperature and the like is replaced, not refused.
    """
    made = FunctionAgent(agent) if callable(agent) else ProgramAgent(agent)
    run = partial(AgentRun, override_sampling=override_sampling)
    return EnvironmentFactory(name, lambda problem: made, run=run, isolate=False)


class AgentRun:
    """One episode of an agent, in place of an EpisodeRun."""

    def __init__(self, inputs: EpisodeInputs, *, override_sampling: bool = False) -> None:
        self.inputs, problem = inputs, inputs.problem
        if problem.prefill:
            raise ConfigError(
                "an agent writes its own prompts, so answers cannot begin with the task's prefill "
                f"{quoted(problem.prefill, 40)}: leave the prefill out"
            )
        self.opening = inputs.chat.opening(as_messages(problem), ())
        self.session = Session(
            inputs.engine,
            inputs.chat,
            inputs.tokenizer,
            inputs.eos_ids,
            inputs.sampling,
            inputs.limits,
            key=inputs.key,
            parse=inputs.parse,
            override_sampling=override_sampling,
        )

    async def run(self) -> tuple[Segment, ...]:
        began, error, scores = time.monotonic(), "", {}
        session, gateway = self.session, local_gateway()
        base_url, api_key = gateway.open(session)
        problem = self.inputs.problem
        agent = self.inputs.make(problem)
        try:
            work = agent.run(base_url, api_key, problem, self.inputs.seed)
            scores = _scores(await self._watched(work))
            if not session.turns:
                raise EnvironmentFailed("the agent did not ask the model for anything")
        except EnvironmentFailed as failure:
            # An agent that ends because its requests met a limit was ended by that limit.
            if session.limit is None or not session.turns:
                error = masked(str(failure), api_key)
        finally:
            gateway.close(api_key)
        if session.failure is not None:
            raise session.failure
        return self._segments(error, scores, time.monotonic() - began)

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The agent's result, within its time: that in which no request of its is in progress."""
        limits = self.session.limits
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                late, whole = self.session.idle
                left = min(limits.step_seconds - late, limits.episode_seconds - whole)
                if left <= 0:
                    over = "step" if late >= limits.step_seconds else "episode"
                    seconds = limits.step_seconds if over == "step" else limits.episode_seconds
                    did = "ask the model again or end" if over == "step" else "end"
                    raise EnvironmentFailed(
                        f"the agent did not {did} within {seconds:g} s, without the model's time "
                        f"(environment.{over}_seconds)"
                    )
                if self.session.failure is not None:
                    raise self.session.failure
                await asyncio.wait({task}, timeout=min(left + 0.001, POLL_SECONDS))
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _segments(
        self, error: str, scores: Mapping[str, float | None], seconds: float
    ) -> tuple[Segment, ...]:
        session = self.session
        stop: StopReason = "environment" if error else session.stop
        segments = session.segments() or (Segment(self.opening, Completion((), (), stop)),)
        episode = Episode(
            messages=_behind_prompt(session.messages, as_messages(self.inputs.problem)),
            turns=session.turns,
            rewards=(None,) * len(session.turns),
            scores=scores,
            calls=session.calls,
            malformed=session.malformed,
            segments=len(segments),
            error=error,
            seconds=seconds,
            waited=min(session.idle[1], seconds),
        )
        return whole_episode(segments, stop, episode, session.text)


def _scores(value: Any) -> Mapping[str, float | None]:
    """Of {"reward": 1.0}, {"scores": {"won": 1.0}}, or nothing."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise EnvironmentFailed(f"the agent gave {quoted(repr(value), 80)}, which is not a reward")
    if "reward" in value and "scores" in value:
        raise EnvironmentFailed("the agent gave a reward and scores: one of the two is enough")
    named = {"reward": value["reward"]} if "reward" in value else value.get("scores", {})
    try:
        return checked_scores(named)
    except EnvironmentFailed as failure:
        raise EnvironmentFailed(f"the agent {failure}") from failure


def _behind_prompt(
    messages: Sequence[ChatMessage], prompt: Sequence[ChatMessage]
) -> tuple[ChatMessage, ...]:
    """Without the problem's own prompt, where the agent began with it."""
    begins = len(messages) >= len(prompt) and all(map(same_message, prompt, messages))
    return tuple(messages[len(prompt) :] if begins else messages)
