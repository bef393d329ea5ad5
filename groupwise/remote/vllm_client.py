"""One vLLM server that `groupwise serve vllm` started: its state, answers, and new weights."""

import hashlib
import json
import pathlib
import tempfile
from collections.abc import Iterator

import torch
from safetensors.torch import load_file
from torch import Tensor

from groupwise.errors import ModelError
from groupwise.policy.adapters import CONFIG, WEIGHTS, Adapter
from groupwise.policy.load import Policy
from groupwise.remote.client import Described, Reply, ServerClient, ServerUnavailable
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
    slow_fix = "engine.timeout, or lower engine.max_batch or rollout.max_completion_tokens"

    def state(self) -> VllmState:
        """Asked at the start and when a server comes back, so it must not take long."""
        seconds = min(self.timeout, STATE_SECONDS)
        return self.describe(self.request("GET", "/groupwise/state", timeout=seconds), VllmState)

    def generate(self, body: bytes, max_bytes: int) -> bytes:
        headers = {"Content-Type": "application/json"}
        return self.request("POST", "/inference/v1/generate", body, max_bytes, headers=headers)

    def push(self, stream: WeightsStream, version: str) -> None:
        """Give it weights, or an adapter's; when this returns, it answers with them."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(stream.length + hashlib.sha256().digest_size),
            "X-Groupwise-Version": version,
            "X-Groupwise-Kind": "adapter" if stream.metadata else "weights",
        }
        self.request("PUT", "/groupwise/weights", with_digest(stream), headers=headers)

    def failure(self, reply: Reply) -> Exception:
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


def policy_stream(policy: Policy, dtype: torch.dtype) -> WeightsStream:
    """What is pushed: the policy's weights in the server's precision, or its adapter alone, whose
    config travels as the file's metadata. The server makes PEFT's two files of it."""
    if policy.adapter is None:
        return WeightsStream(named_weights(policy), dtype)
    tensors, config = adapter_files(policy.adapter)
    return WeightsStream(tensors, metadata={"adapter_config": config})


def named_weights(policy: Policy) -> dict[str, Tensor]:
    """Every weight once, by the name that it has in a checkpoint, which is what vLLM loads."""
    from transformers.core_model_loading import revert_weight_conversion

    own = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    return revert_weight_conversion(policy.model, own)


def adapter_files(adapter: Adapter) -> tuple[dict[str, Tensor], str]:
    """Weights and config as PEFT saves them."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as name:
        folder = pathlib.Path(name)
        adapter.save(folder)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return load_file(folder / WEIGHTS), json.dumps(config)
