"""Groups whose answers are episodes: several to one problem, side by side."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from groupwise.distributed.world import ALONE, World
from groupwise.environments.base import AllEpisodesFailed, EnvironmentBusy, EnvironmentFactory
from groupwise.environments.calls import ParseTurn, parse_hermes
from groupwise.environments.chat import Chat, PlainChat
from groupwise.environments.episode import EpisodeInputs, EpisodeLimits, EpisodeRun, Segment
from groupwise.environments.renderers_chat import ChatKind, RenderersChat, template_chat
from groupwise.environments.rounds import Rounds
from groupwise.environments.slots import EpisodeEngine, EpisodeSlots
from groupwise.errors import quoted
from groupwise.rollout.engine import Engine
from groupwise.types import Completion, Group, Problem, Sampling

log = logging.getLogger("groupwise")


class Episodes:
    """What turns problems into groups of episodes.

    `weight` is that of the environment's own reward. `at_once` bounds how many episodes run beside
    those that wait for their environment, `max_open` all of them; it is twice as many if not given.
    `in_rounds`, they take their turns together.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        tokenizer: Any,
        eos_ids: tuple[int, ...],
        limits: EpisodeLimits,
        *,
        weight: float = 1.0,
        at_once: int = 256,
        max_open: int | None = None,
        in_rounds: bool = False,
        chat: ChatKind = "auto",
    ) -> None:
        self.factory, self.limits = factory, limits
        self.tokenizer, self.eos_ids = tokenizer, eos_ids
        self.weight, self.in_rounds = weight, in_rounds
        self.max_open = 2 * at_once if max_open is None else max_open
        self.at_once = min(at_once, self.max_open)
        self._template = template_chat(tokenizer, eos_ids, factory.tools, chat)
        self.parse: ParseTurn = (
            self._template.parse if isinstance(self._template, RenderersChat) else parse_hermes
        )
        self._slots: tuple[asyncio.AbstractEventLoop, EpisodeSlots] | None = None
        self._begun = itertools.count()

    def prove(self) -> dict[str, str | None]:
        """What the chat template does to the past, by kind of conversation: the first token that
        it changes, or None where it keeps everything. Empty for models without a template.

        Raises ModelError for a template that cannot show an environment's replies.
        """
        return {} if self._template is None else self._template.prove(self.factory.tools)

    @property
    def continued_by(self) -> str:
        """What continues conversations, in words."""
        if isinstance(self._template, RenderersChat):
            return f"renderers ({self._template.family})"
        return "joined turns" if self._template is None else "the chat template"

    def close(self) -> None:
        self.factory.close()

    @property
    def reward_weights(self) -> dict[str, float]:
        """The environment's own reward, where it has one."""
        return {self.factory.name: self.weight} if self.factory.scores else {}

    def check(self, groups: Sequence[Group], world: World = ALONE) -> None:
        """Names what failed. Raises AllEpisodesFailed where nothing else is left on any rank."""
        episodes = [(g.problem, c.episode) for g in groups for c in g.completions if c.episode]
        failed = [(problem, episode) for problem, episode in episodes if episode.error]
        said = ""
        if failed:
            problem, episode = failed[0]
            said = (
                f"{len(failed)} of {len(episodes)} episodes were ended by their environment; the "
                f"first, of problem {quoted(problem.id, 60)}: {episode.error}"
            )
        ranks = world.gather([len(episodes) - len(failed), said])
        errors = [error for _, error in ranks if error]
        if errors and not any(ended_well for ended_well, _ in ranks):
            raise AllEpisodesFailed(
                f"{errors[0]}. Nothing is left to learn from: fix the environment"
            )
        if said:
            log.warning("%s", said)

    async def group(
        self,
        problem: Problem,
        engine: Engine,
        keys: Sequence[int],
        samplings: Sequence[Sampling],
        seed: int,
    ) -> Group:
        """One episode for each key. They all get the same seed, to begin alike."""
        wanted = list(zip(keys, samplings, strict=True))
        episodes = await asyncio.gather(
            *(self._episode(problem, engine, key, sampling, seed) for key, sampling in wanted)
        )
        if len({sampling.temperature for sampling in samplings}) > 1:
            pairs = zip(episodes, samplings, strict=True)
            episodes = [_drawn_at(episode, s.temperature) for episode, s in pairs]
        return as_group(problem, episodes)

    async def _episode(
        self, problem: Problem, engine: Engine, key: int, sampling: Sampling, seed: int
    ) -> tuple[Segment, ...]:
        limits = replace(self.limits, max_tokens=sampling.max_tokens)
        number = next(self._begun)
        while True:
            slot = self._slots_of_this_loop().slot(number)
            inputs = EpisodeInputs(
                EpisodeEngine(engine, slot.turn),
                self.factory.make,
                problem,
                self._chat(problem),
                self.tokenizer,
                self.eos_ids,
                sampling,
                limits,
                key,
                seed,
                self.parse,
                self.factory.thread,
            )
            run = (self.factory.run or EpisodeRun)(inputs)
            async with self.factory.queue(), slot:
                with contextlib.suppress(EnvironmentBusy):
                    segments = await run.run()
                    episode = segments[0].completion.episode
                    if self.factory.ended is not None and episode is not None:
                        self.factory.ended(episode, run.environment)
                    return segments

    def _chat(self, problem: Problem) -> Chat:
        if isinstance(problem.prompt, str) and self.factory.run is None:
            return PlainChat(self.tokenizer)
        return self._template or PlainChat(self.tokenizer, between="\n\n")

    def _slots_of_this_loop(self) -> EpisodeSlots:
        """Those of this event loop: what waits for them belongs to it."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            rounds, at_once = self.in_rounds, self.at_once
            self._slots = loop, Rounds(at_once) if rounds else EpisodeSlots(at_once, self.max_open)
        return self._slots[1]


def as_group(problem: Problem, episodes: Sequence[tuple[Segment, ...]]) -> Group:
    """All segments of all episodes as the answers of one group.

    Its prompt is what they begin with alike. What a segment's own prompt has beyond that opens its
    answer, as tokens that the policy did not sample.
    """
    segments = [segment for episode in episodes for segment in episode]
    prompts = [segment.prompt for segment in segments if segment.completion.tokens]
    prompt = _common(prompts or [segments[0].prompt])
    return Group(problem, prompt, tuple(_behind(segment, len(prompt)) for segment in segments))


def _drawn_at(episode: tuple[Segment, ...], temperature: float) -> tuple[Segment, ...]:
    return tuple(
        replace(segment, completion=replace(segment.completion, temperature=temperature))
        for segment in episode
    )


def _common(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, last = min(prompts), max(prompts)  # what these two share, all between them share
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((n for n, (a, b) in pairs if a != b), min(len(first), len(last)))]


def _behind(segment: Segment, shared: int) -> Completion:
    written, opening = segment.completion, segment.prompt[shared:]
    if not opening or not written.tokens:
        return written
    sampled = written.sampled or (True,) * len(written.tokens)
    return replace(
        written,
        tokens=(*opening, *written.tokens),
        logprobs=(*(0.0 for _ in opening), *written.logprobs),
        sampled=(*(False for _ in opening), *sampled),
        versions=tuple((first + len(opening), version) for first, version in written.versions),
    )
