"""The reference of a run, held by one server or several. Training sees a `KLReference`.

Micro-batches are cut here exactly as they would be in process, so the numbers are the same. Each
goes to whichever server is free (links.py).
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.config import ReferenceSettings
from groupwise.errors import ModelError
from groupwise.policy.load import Policy
from groupwise.serve.client import token_in
from groupwise.serve.identity import Identity, difference, from_tensors, identify, to_tensors
from groupwise.serve.links import Link, Links
from groupwise.serve.scored import Logps
from groupwise.serve.scoring_server import Offer, Server
from groupwise.serve.wire import Question
from groupwise.types import Group

COMMAND = "groupwise serve reference"
Cut = tuple[Question, Sequence[tuple[int, int]]]
"""What is asked of one server at once, and which (group, answer) its answers are."""


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
        token = token_in(settings.token_env, "reference.kind=server", COMMAND)
        urls = [url.rstrip("/") for url in settings.urls]
        self.servers = Links[Server, Offer](
            [Link(url, Server(url, token, settings.token_env, settings.timeout)) for url in urls],
            self._reach,
            "reference server",
            f"Start one with `{COMMAND}`, name it in reference.urls",
        )
        if fresh:
            self._begin(identify(policy))

    def logprobs(self, batch: Batch, temperature: float, tokens_at_once: int) -> Tensor:
        if not batch.groups:
            return torch.zeros_like(batch.advantages_BT)
        found = self._score(batch, temperature, tokens_at_once)
        logprobs_BT = torch.zeros(batch.mask_BT.shape)
        for line, member in enumerate(batch.members):
            logprobs_BT[line, : len(found[member])] = torch.tensor(found[member])
        return logprobs_BT.to(batch.mask_BT.device)

    def _score(self, batch: Batch, temperature: float, tokens_at_once: int) -> Logps:
        most = min(offer.tokens for _, offer in self.servers.ready())
        if batch.longest_row > most:
            raise ModelError(
                f"a prompt with its answer has {batch.longest_row} tokens, and a reference "
                f"server takes {most}: start it with --tokens {batch.longest_row} or more"
            )
        cut = self._cut(batch, temperature, min(tokens_at_once, most))
        found = self.servers.spread(
            cut, lambda server, offer, piece: server.logprobs(piece[0], offer.model.name)
        )
        return {
            place: logprobs
            for (_, places), answers in zip(cut, found, strict=True)
            for place, logprobs in zip(places, answers.values(), strict=True)
        }

    def refresh(self, policy: Policy, step: int) -> None:
        """It stays what it is."""

    def state(self) -> dict[str, Tensor]:
        assert self.start is not None
        return to_tensors(self.start)

    def load(self, tensors: dict[str, Tensor]) -> None:
        self._begin(from_tensors(tensors))

    def _begin(self, start: Identity) -> None:
        self.start = start
        self.servers.begin()

    def _reach(self, server: Server) -> Offer:
        assert self.start is not None
        offer = server.offer()
        other = difference(self.start, offer.model)
        if other is not None:
            raise ModelError(
                f"the reference server {server.url} has another model than this run started "
                f"from: {other}. Start it with `{COMMAND}` and the run's `model:`"
            )
        return offer

    def _cut(self, batch: Batch, temperature: float, tokens: int) -> list[Cut]:
        return [
            (
                _question(batch.groups, micro.members, temperature, self.layout, self.exact),
                micro.members,
            )
            for micro in batch.microbatches(self.layout, tokens)
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
