"""Several vLLM servers as the engine of a run.

`load_weights` pushes weights to all servers. Each answer says which version drew it, so one by
other weights than were meant is never learned from.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from secrets import token_hex

import torch
from torch import Tensor

from groupwise.config import Config, Processes
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.load import Policy
from groupwise.remote.client import BaseRefused, ServerUnavailable
from groupwise.remote.event_loop import client_loop
from groupwise.remote.fingerprint import model_fingerprint, probe_gap, probe_tokens
from groupwise.remote.local_servers import LocalServer, vllm_processes
from groupwise.remote.payload import WeightsStream
from groupwise.remote.pool import together
from groupwise.remote.published_weights import PublishedWeights
from groupwise.remote.remote_engine import RemoteEngine
from groupwise.remote.vllm_client import (
    COMMAND,
    VllmClient,
    VllmState,
    adapter_config,
    adapter_weights,
    checkpoint_weights,
)
from groupwise.remote.vllm_payload import (
    Sampled,
    completion,
    decode_probe,
    decode_response,
    encode_probe,
    encode_request,
    max_response_bytes,
    sampling_params,
)
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling

ANOTHER_RUN = "another run has put its weights there: each run needs servers of its own"


class VllmServers(RemoteEngine[VllmClient, VllmState]):
    """VllmServers(policy, config) checks every server against the policy."""

    def __init__(self, policy: Policy, config: Config) -> None:
        check_adapter(config)
        self.longest = longest_row(config)

        def processes(place: Processes, token: str) -> Sequence[LocalServer]:
            return vllm_processes(config, place, policy.model.dtype, token, self.longest)

        limits = {"max_load": config.engine.max_batch, "max_failures": 1}
        super().__init__(policy, config, VllmClient, processes, **limits)
        self.run = token_hex(8)
        self.probe: tuple[float, ...] | None = model_fingerprint(policy).probe
        """The policy's log-probs of some tokens: with the first weights, the servers' too."""
        self.adapter = None if policy.adapter is None else adapter_config(policy.adapter)
        self.connect()
        dtypes = {server.state.dtype for server in self.pool.servers if server.state}
        self.published = PublishedWeights(getattr(torch, *dtypes) if len(dtypes) == 1 else None)

    @property
    def wanted(self) -> str:
        return f"{self.run}:{self.version}"

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if not request.keys:
            return ()
        self.load_first_weights()
        self._check_length(len(request.prompt_tokens) + sampling.max_tokens)
        return await client_loop().result(self._sample(request, sampling))

    async def _sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        """All answers at one server, which keeps the keys and values of the prompt for them."""
        eos_ids, adapter = self.policy.eos_ids, self.policy.adapter is not None
        bodies = [
            encode_request(
                request.prompt_tokens, sampling_params(key, sampling, eos_ids), adapter=adapter
            )
            for key in request.keys
        ]

        async def at(client: VllmClient, _: VllmState) -> list[Sampled]:
            return await together(self._draw(client, b, sampling.max_tokens) for b in bodies)

        sampled = await self.pool.do(at, load=len(bodies))
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        return tuple(completion(one, version_of, eos_ids, stops) for one in sampled)

    async def _draw(self, client: VllmClient, body: bytes, max_tokens: int) -> Sampled:
        wanted = self.wanted
        content = await client.generate(body, max_response_bytes(max_tokens))
        sampled = decode_response(content, self.policy.vocab, max_tokens)
        for _, label in sampled.parts:
            ours = label.startswith(f"{self.run}:") if self.in_flight else label == wanted
            if not ours:
                raise ServerUnavailable(other_weights(label, wanted))
        return sampled

    def keep_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        if self.policy.adapter is None:
            self.published.update(version, checkpoint_weights(self.policy, weights))
        else:
            self.published.update(version, adapter_weights(weights))
        self.probe = self.probe if self.version is None else None

    async def check(self, client: VllmClient) -> VllmState:
        state = await client.state()
        self._check_model(client.url, state)
        ours = state.version.startswith((f"{self.run}:", "default", "broken"))
        if self.version is not None and not ours:
            raise ServerUnavailable(ANOTHER_RUN)
        return state

    async def send_weights(self, client: VllmClient, state: VllmState) -> VllmState:
        if state.version != self.wanted:
            await self._push(client, state)
            state = state.model_copy(update={"version": self.wanted})
        if self.probe is not None:
            await self._check_probe(client, state, self.probe)
        return state

    async def _push(self, client: VllmClient, state: VllmState) -> None:
        published, dtype = self.published, getattr(torch, state.dtype)
        if self.adapter is not None:
            # vLLM reads an adapter's file again for answers that go on: let them end first.
            stream = WeightsStream(published.weights, metadata={"adapter_config": self.adapter})
            running = "wait" if self.in_flight else "abort"
            await client.push(stream, self.wanted, running=running, kind="adapter")
            return
        running = "keep" if self.in_flight else "abort"
        base = f"{self.run}:{published.base}"
        if published.difference is not None and base == state.version:
            with suppress(BaseRefused):
                await client.push_difference(
                    published.difference, base, self.wanted, published.checksum, running=running
                )
                return
        await client.push(WeightsStream(published.weights, dtype), self.wanted, running=running)

    async def _check_probe(
        self, client: VllmClient, state: VllmState, ours: tuple[float, ...]
    ) -> None:
        """Whether a server finds the same tokens as likely as the policy does. Below an adapter
        the weights are its own, and a wrong RoPE or precision shows here and nowhere else."""
        tokens = probe_tokens(self.policy.vocab)
        body = encode_probe(tokens, adapter=self.policy.adapter is not None)
        content = await client.generate(body, max_response_bytes(len(tokens)))
        exact = state.dtype == "float32" and not self.policy.rounds
        gap = probe_gap(ours, decode_probe(content, tokens), exact=exact)
        if gap is not None:
            raise ModelError(
                f"the vLLM server {client.url} gives the same tokens other log-probs than the "
                f"policy, by {gap} on average, with the same weights in it. Start it with the "
                "recipe's `model:` and precision"
            )

    def _check_model(self, url: str, state: VllmState) -> None:
        config, adapter = self.policy.model.config.get_text_config(), self.policy.adapter
        ours = (self.policy.vocab, config.num_hidden_layers, config.hidden_size)
        theirs = (state.vocab, state.layers, state.width)
        rank = 0 if adapter is None else adapter.peft.peft_config["default"].r
        problem = None
        if ours != theirs:
            problem = (
                f"serves another model: vocabulary, layers and width are {theirs}, the recipe's "
                f"{ours}. Start it with the recipe's `model:`"
            )
        elif state.positions < self.longest:
            problem = (
                f"takes {state.positions} tokens, and the recipe's longest prompt with its answer "
                f"has {self.longest}: start it with --max-model-len {self.longest}, or lower "
                "rollout.max_prompt_tokens or max_completion_tokens"
            )
        elif state.logprobs != "processed_logprobs":
            problem = (
                f"gives {state.logprobs}, which are not those of what it draws from: start it with "
                "--logprobs-mode processed_logprobs"
            )
        elif state.lora_rank < rank:
            problem = (
                f"takes no adapter of rank {rank}: start it with --enable-lora "
                f"--max-lora-rank {rank} (`{COMMAND} MODEL --lora-rank {rank}`)"
            )
        if problem is not None:
            raise ModelError(f"the vLLM server {url} {problem}")

    def _check_length(self, longest: int) -> None:
        states = [server.state for server in self.pool.servers if server.state]
        positions = min((state.positions for state in states), default=longest)
        if longest > positions:
            raise ModelError(
                f"a prompt with its answer has up to {longest} tokens, and a vLLM server takes "
                f"{positions}: start it with --max-model-len {longest}"
            )


def version_of(label: str) -> int:
    """version_of("a1b2:7") == 7"""
    return int(label.rpartition(":")[2])


def other_weights(version: str, wanted: str) -> str:
    if version == "default":
        return "it was started again and has the weights that it was started with"
    if version.partition(":")[0] != wanted.partition(":")[0]:
        return ANOTHER_RUN
    return f"it has weights of version {version.partition(':')[2]}, not {wanted.partition(':')[2]}"


def check_adapter(config: Config) -> None:
    if config.adapter is not None and config.adapter.dora:
        raise ConfigError(
            "vLLM cannot serve DoRA adapters: set adapter.dora=false, or engine.kind=native"
        )


def longest_row(config: Config) -> int:
    """Tokens of the longest prompt with its longest answer, in training and in evaluation."""
    answer = max(config.rollout.max_completion_tokens, config.eval.max_completion_tokens or 0)
    return config.rollout.max_prompt_tokens + answer
