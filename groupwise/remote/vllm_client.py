"""One vLLM server that `groupwise serve vllm` started: its state, answers, and new weights."""

import hashlib
import json
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from groupwise.errors import ModelError
from groupwise.policy.adapters import CONFIG, Adapter
from groupwise.policy.load import Policy
from groupwise.remote.client import (
    BaseRefused,
    Described,
    HttpReply,
    ServerClient,
    ServerUnavailable,
)
from groupwise.remote.payload import WeightsStream

COMMAND = "groupwise serve vllm"
STATE_SECONDS = 30.0


class VllmState(Described):
    """What a server is, and whose weights it has: "RUN:STEP", or vLLM's "default"."""

    version: str
    vocab: int
    layers: int
    width: int
    positions: int
    dtype: str
    logprobs: str
    lora_rank: int


class VllmClient(ServerClient):
    kind, command = "vLLM server", COMMAND
    slow_fix = "place.timeout, or lower engine.max_batch or rollout.max_completion_tokens"

    async def state(self) -> VllmState:
        """Asked at the start and when a server comes back, so it must not take long."""
        seconds = min(self.timeout, STATE_SECONDS)
        content = await self.request("GET", "/groupwise/state", timeout=seconds)
        return self.describe(content, VllmState)

    async def generate(self, body: bytes, max_bytes: int) -> bytes:
        headers = {"Content-Type": "application/json"}
        return await self.request(
            "POST", "/inference/v1/generate", body, max_bytes, headers=headers
        )

    async def push(
        self, stream: WeightsStream, version: str, *, running: str, kind: str = "weights"
    ) -> None:
        """Give it weights, or an adapter's; when this returns, it answers with them. `running` says
        what becomes of answers that grow meanwhile: abort, wait or keep."""
        digest = hashlib.sha256()
        length = stream.length + digest.digest_size
        headers = {"X-Groupwise-Kind": kind, "X-Groupwise-Running": running}
        await self._put(with_digest(stream), length, version, headers)

    async def push_difference(
        self, difference: bytes, base: str, version: str, checksum: str, *, running: str
    ) -> None:
        """Give it what is different from version `base`, which it has; raises BaseRefused where
        that is not so, or the result is not what it should be."""
        headers = {"X-Groupwise-Kind": "difference", "X-Groupwise-Running": running}
        headers["X-Groupwise-Base"] = base
        digest = hashlib.sha256(difference).digest()
        content = await self._put(
            [difference, digest], len(difference) + len(digest), version, headers
        )
        try:
            arrived = json.loads(content)["checksum"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerUnavailable("its reply to an upload of weights is not valid") from error
        if arrived != checksum:
            raise BaseRefused("its weights are not those that were sent")

    async def _put(
        self, body: Iterable[bytes], length: int, version: str, headers: dict[str, str]
    ) -> bytes:
        headers |= {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(length),
            "X-Groupwise-Version": version,
        }
        return await self.request("PUT", "/groupwise/weights", body, headers=headers)

    def failure(self, reply: HttpReply) -> Exception:
        if reply.status == 404 and reply.path == "/groupwise/state":
            return ModelError(
                f"{self.url} is no server that weights can be pushed to: start it with `{COMMAND} "
                "MODEL`, or give `vllm serve` the flags in docs/vllm.md"
            )
        if reply.status == 404:
            return ServerUnavailable("it does not have the adapter (any more): it was restarted")
        if reply.status in (409, 503):
            return ServerUnavailable(f"it failed with status {reply.status}: {reply.text}")
        return super().failure(reply)


def with_digest(stream: WeightsStream) -> Iterator[bytes]:
    """The file, and behind it its SHA-256, by which the receiver knows that it is whole."""
    digest = hashlib.sha256()
    for chunk in stream:
        digest.update(chunk)
        yield chunk
    yield digest.digest()


def checkpoint_weights(
    policy: Policy, weights: Iterable[tuple[str, Tensor]]
) -> Iterable[tuple[str, Tensor]]:
    """Weights by the names that they have in a checkpoint, which is what vLLM loads. One by one,
    unless the model's own are made of several of a checkpoint's."""
    from transformers.core_model_loading import revert_weight_conversion

    shapes = {
        name: torch.empty_like(weight, device="meta")
        for name, weight in policy.model.named_parameters()
    }
    renamed: dict[str, Tensor] = revert_weight_conversion(policy.model, dict(shapes))
    if renamed.keys() == shapes.keys():
        return weights
    return revert_weight_conversion(policy.model, dict(weights)).items()


def adapter_weights(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """An adapter's weights by the names that PEFT saves them under."""
    for name, weight in weights:
        yield f"base_model.model.{name.replace('.default.', '.')}", weight


def adapter_config(adapter: Adapter) -> str:
    """As PEFT saves it, which changes the config while it does: call it in one thread."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as name:
        adapter.save(pathlib.Path(name))
        text = (pathlib.Path(name) / CONFIG).read_text(encoding="utf-8")
    return json.dumps(json.loads(text))
