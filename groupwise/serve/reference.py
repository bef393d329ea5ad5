"""The reference of a run, held by one server or several. Training sees a `KLReference`.

Micro-batches are cut here exactly as they would be in process, so the numbers are the same. Each
goes to whichever server is free. One that fails is left aside for a while and its work goes to the
others; when none is left the run ends with a message, and the same command goes on later from the
last checkpoint.
"""

import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from torch import Tensor

from groupwise.batch import longest_row, microbatches
from groupwise.config import ReferenceSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.load import Policy
from groupwise.policy.scoring import Logps
from groupwise.serve.client import Busy, Gone, Offer, Server
from groupwise.serve.identity import Identity, difference, from_tensors, identify, to_tensors
from groupwise.serve.wire import Question
from groupwise.types import Group

log = logging.getLogger("groupwise")

ASIDE_SECONDS = 30.0
"""How long a server that failed is left alone before it is tried again."""
MOST_FAILURES = 3
"""Of each server, while one batch is scored: a question that kills them all ends the run."""

Cut = tuple[Question, Sequence[tuple[int, int]]]
"""What is asked of one server at once, and which (group, answer) its answers are."""


@dataclass
class Link:
    """A server, and how it is. `offer` is None until it has been reached, and while it is gone."""

    server: Server
    offer: Offer | None = None
    try_at: float = 0.0
    reason: str = ""


class ServerReference:
    """ServerReference(settings, policy, fresh=True) checks every server against the policy.

    When a run goes on from a checkpoint (`fresh=False`) the policy is no longer what it started
    as; `load` then brings what that was, and checks.
    """

    saved = True

    def __init__(self, settings: ReferenceSettings, policy: Policy, *, fresh: bool) -> None:
        self.layout = policy.layout
        self.exact = not policy.rounds
        self.start: Identity | None = None
        token = os.environ.get(settings.token_env, "")
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ConfigError(
                f"reference.kind=server needs the servers' token in the environment: "
                f"export {settings.token_env}=..., as `groupwise serve reference` printed it"
            )
        self.links = [
            Link(Server(url.rstrip("/"), token.strip(), settings.token_env, settings.timeout))
            for url in settings.urls
        ]
        if fresh:
            self._begin(identify(policy))

    def score(self, groups: Sequence[Group], temperature: float, tokens_at_once: int) -> Logps:
        ready = self._ready()
        most = min(link.offer.tokens for link in ready if link.offer)
        if longest_row(groups) > most:
            raise ModelError(
                f"a prompt with its answer has {longest_row(groups)} tokens, and a reference "
                f"server takes {most}: start it with --tokens {longest_row(groups)} or more"
            )
        cut = self._cut(groups, temperature, min(tokens_at_once, most))
        waiting = deque(range(len(cut)))
        found: dict[int, Logps] = {}
        failures = 0
        while len(found) < len(cut):
            with ThreadPoolExecutor(len(ready)) as pool:
                work = [pool.submit(self._work, link, cut, waiting, found) for link in ready]
            failures += sum(task.result() for task in work)
            if len(found) < len(cut) and failures > MOST_FAILURES * len(self.links):
                raise self._nobody()
            ready = self._ready() if len(found) < len(cut) else ready
        return {
            place: logps
            for index, (_, places) in enumerate(cut)
            for place, logps in zip(places, found[index].values(), strict=True)
        }

    def refresh(self, policy: Policy, step: int) -> None:
        """It stays what it is."""

    def state(self) -> dict[str, Tensor]:
        assert self.start is not None
        return to_tensors(self.start)

    def load(self, tensors: dict[str, Tensor]) -> None:
        self._begin(from_tensors(tensors))

    def _begin(self, start: Identity) -> None:
        """Reach every server. Here a wrong token or model ends the run; later on it does not."""
        self.start = start
        for link in self.links:
            try:
                self._reach(link)
            except (Gone, Busy) as error:
                self._put_aside(link, str(error))
        self._ready()

    def _reach(self, link: Link) -> None:
        assert self.start is not None
        offer = link.server.offer()
        other = difference(self.start, offer.model)
        if other is not None:
            raise ModelError(
                f"the reference server {link.server.url} has another model than this run started "
                f"from: {other}. Start it with `groupwise serve reference` and the run's `model:`"
            )
        link.offer = offer

    def _ready(self) -> list[Link]:
        """Servers that work. Those left aside are tried when due, and at once if none is left."""
        now = time.monotonic()
        none_left = all(link.offer is None for link in self.links)
        for link in self.links:
            if link.offer is None and (none_left or now >= link.try_at):
                try:
                    self._reach(link)
                    log.info("reference server %s is back", link.server.url)
                except (Gone, Busy, ModelError) as error:
                    link.try_at = time.monotonic() + ASIDE_SECONDS
                    link.reason = str(error)
        ready = [link for link in self.links if link.offer is not None]
        if not ready:
            raise self._nobody()
        return ready

    def _work(
        self,
        link: Link,
        cut: Sequence[Cut],
        waiting: deque[int],
        found: dict[int, Logps],
    ) -> int:
        """Answer what waits until nothing does, or until the server fails; how often it failed."""
        while link.offer is not None:
            try:
                index = waiting.popleft()
            except IndexError:
                return 0
            try:
                found[index] = link.server.ask(cut[index][0], link.offer.model.name)
            except Gone as error:
                waiting.append(index)
                self._put_aside(link, str(error))
                return 1
            except BaseException:
                waiting.clear()  # the run cannot go on: the others need not either
                raise
        return 0

    def _put_aside(self, link: Link, reason: str) -> None:
        link.offer, link.reason = None, reason
        link.try_at = time.monotonic() + ASIDE_SECONDS
        log.warning(
            "reference server %s is gone (%s): its work goes to the others, and it is tried again "
            "every %g s",
            link.server.url,
            reason,
            ASIDE_SECONDS,
        )

    def _nobody(self) -> ModelError:
        reasons = "; ".join(f"{link.server.url}: {link.reason}" for link in self.links)
        return ModelError(
            f"no reference server is left ({reasons}). Start one with `groupwise serve reference`, "
            "name it in reference.urls, and run the same command again: it goes on from the last "
            "checkpoint"
        )

    def _cut(self, groups: Sequence[Group], temperature: float, tokens: int) -> list[Cut]:
        return [
            (
                _question(groups, micro.members, temperature, self.layout, self.exact),
                micro.members,
            )
            for micro in microbatches(groups, layout=self.layout, budget=tokens)
        ]


def _question(
    groups: Sequence[Group],
    members: Sequence[tuple[int, int]],
    temperature: float,
    layout: str,
    exact: bool,
) -> Question:
    """The answers of one micro-batch as groups, in its order: one group becomes one row."""
    rows = (
        [[member] for member in members]
        if layout == "padded"
        else [list(row) for _, row in itertools.groupby(members, key=lambda member: member[0])]
    )
    cut = [
        replace(
            groups[row[0][0]],
            completions=tuple(groups[group].completions[answer] for group, answer in row),
        )
        for row in rows
    ]
    return Question(tuple(cut), temperature, layout, exact)
