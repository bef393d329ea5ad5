"""The reference of a run, held by one server or several. Training sees a `KLReference`.

Micro-batches are cut here exactly as they would be in process, so the numbers are the same. Each
goes to whichever server is free (pool.py).
"""

import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from groupwise.batch import Batch
from groupwise.config import ReferenceSettings
from groupwise.errors import ModelError
from groupwise.policy.load import Policy
from groupwise.policy.packing import microbatches
from groupwise.remote.client import Described, ServerClient, ServerUnavailable
from groupwise.remote.event_loop import client_loop
from groupwise.remote.fingerprint import (
    ModelFingerprint,
    from_tensors,
    model_difference,
    model_fingerprint,
    to_tensors,
)
from groupwise.remote.pool import ServerPool, pooled, together
from groupwise.remote.reference_payload import LogprobsRequest, decode_response, encode_request
from groupwise.types import Group

KIND, COMMAND = "reference server", "groupwise serve reference"


class ServedModel(Described):
    """What a reference server has, and how many tokens it takes at once."""

    fingerprint: ModelFingerprint
    tokens: int = Field(ge=1)


class ReferenceClient(ServerClient):
    kind, command, slow_fix = KIND, COMMAND, "reference.timeout"

    async def model(self) -> ServedModel:
        return self.describe(await self.request("GET", "/model"), ServedModel)

    async def logprobs(self, request: LogprobsRequest, model: str) -> list[tuple[float, ...]]:
        """The log-probs of each answer, from the model of this name and no other."""
        body, most = encode_request(request), request.max_response_bytes
        content = await self.post("/logprobs", body, most)
        logprobs, name = decode_response(content, request)
        if name != model:
            raise ServerUnavailable("it was started again with another model")
        return logprobs


class RemoteReference:
    """RemoteReference(settings, policy, fresh=True) checks every server against the policy.

    When a run goes on from a checkpoint (`fresh=False`) the policy is no longer what it started
    as; `load` then brings what that was, and checks.
    """

    saved = True

    def __init__(
        self, settings: ReferenceSettings, policy: Policy, *, fresh: bool, token: str | None = None
    ) -> None:
        self.layout = policy.layout
        self.exact = not policy.rounds
        self.start: ModelFingerprint | None = None
        self.pool: ServerPool[ReferenceClient, ServedModel] = ServerPool(
            pooled(ReferenceClient, settings, "reference.kind=server", token),
            self._connect,
            KIND,
            f"Start one with `{COMMAND}`, name it in reference.urls",
            max_load=1,
        )
        if fresh:
            self._begin(model_fingerprint(policy))

    def logprobs(self, batch: Batch, temperature: float, tokens_at_once: int) -> Tensor:
        logprobs_BT = torch.zeros(batch.mask_BT.shape)
        if not batch.groups:
            return logprobs_BT
        ready = client_loop().wait(self.pool.ready())
        most = min(server.state.tokens for server in ready if server.state)
        if batch.longest_row > most:
            raise ModelError(
                f"a prompt with its answer has {batch.longest_row} tokens, and a reference "
                f"server takes {most}: start it with --tokens {batch.longest_row} or more"
            )
        budget = min(tokens_at_once, most)
        micros = list(microbatches(batch, self.layout, budget))
        requests = [self._request(batch.groups, micro.members, temperature) for micro in micros]
        replies = client_loop().wait(together(map(self._reply, requests)))
        for micro, reply in zip(micros, replies, strict=True):
            assert micro.lines is not None
            for line, logprobs in zip(micro.lines.tolist(), reply, strict=True):
                logprobs_BT[line, : len(logprobs)] = torch.tensor(logprobs)
        return logprobs_BT

    def _reply(self, request: LogprobsRequest) -> Awaitable[list[tuple[float, ...]]]:
        return self.pool.do(
            lambda client, served: client.logprobs(request, served.fingerprint.name)
        )

    def refresh(self, policy: Policy, step: int) -> None:
        """It stays what it is."""

    def state(self) -> dict[str, Tensor]:
        assert self.start is not None
        return to_tensors(self.start)

    def load(self, tensors: dict[str, Tensor]) -> None:
        self._begin(from_tensors(tensors))

    def _begin(self, start: ModelFingerprint) -> None:
        self.start = start
        client_loop().wait(self.pool.connect_all())

    async def _connect(self, client: ReferenceClient) -> ServedModel:
        assert self.start is not None
        served = await client.model()
        difference = model_difference(self.start, served.fingerprint)
        if difference is not None:
            raise ModelError(
                f"the reference server {client.url} has another model than this run started "
                f"from: {difference}. Start it with `{COMMAND}` and the run's `model:`"
            )
        return served

    def _request(
        self, groups: Sequence[Group], members: Sequence[tuple[int, int]], temperature: float
    ) -> LogprobsRequest:
        """The answers of one micro-batch as groups, in its order: one group becomes one row."""
        rows = (
            [[member] for member in members]
            if self.layout == "padded"
            else [list(row) for _, row in itertools.groupby(members, key=lambda member: member[0])]
        )
        chosen = tuple(
            replace(
                groups[row[0][0]],
                completions=tuple(groups[group].completions[answer] for group, answer in row),
            )
            for row in rows
        )
        return LogprobsRequest(chosen, temperature, self.layout, self.exact)
