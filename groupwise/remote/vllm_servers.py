"""Several vLLM servers as the engine of a run.

Weights are pushed before the next answers are asked for, to every server that has others; `sync`
only notes that they changed. Each answer says which version sampled it, so one by other weights is
never learned from. In a run of several processes one of them pushes (`writer`), and the others
wait until it has.
"""

import threading
import time
from collections.abc import Sequence
from secrets import token_hex

import torch

from groupwise.config import Config, EngineSettings
from groupwise.distributed.world import World
from groupwise.errors import ConfigError, EngineGoneError, ModelError
from groupwise.policy.load import Policy
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import model_fingerprint, probe_gap, probe_tokens
from groupwise.remote.pool import ServerPool, pooled
from groupwise.remote.vllm_client import COMMAND, VllmClient, VllmState, policy_stream
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

POLL_SECONDS = 0.2
ANOTHER_RUN = "another run has put its weights there: each run needs servers of its own"


class VllmServers:
    """VllmServers(policy, settings, longest=1024) checks every server against the policy."""

    def __init__(self, policy: Policy, settings: EngineSettings, *, longest: int) -> None:
        self.policy, self.settings, self.longest = policy, settings, longest
        self.writer, self.run = True, token_hex(8)
        self.version = 0
        self.begun = False
        """Whether weights of this run have been pushed: those of an earlier one may be replaced."""
        self._saving = threading.Lock()
        self.pool: ServerPool[VllmClient, VllmState] = ServerPool(
            pooled(VllmClient, settings, "engine.urls"),
            self._connect,
            VllmClient.kind,
            f"Start one with `{COMMAND} MODEL`, name it in engine.urls",
            EngineGoneError,
            max_failures=1,
        )
        self.pool.connect_all()

    @property
    def wanted(self) -> str:
        return f"{self.run}:{self.version}"

    def share(self, world: World) -> None:
        """In a run of several ranks the first pushes weights, under a name that all know."""
        if world.size > 1:
            self.writer, self.run = world.first, world.broadcast(self.run)

    def sync(self, version: int) -> None:
        """The next `generate` pushes the policy's weights to servers that have another version."""
        self.version = version

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        self._check_lengths(requests, sampling)
        # Also where this rank has nothing to sample: others wait for weights.
        self.pool.everywhere(self._update)
        if not self.begun:
            probe = model_fingerprint(self.policy).probe
            self.pool.everywhere(lambda client, state: self._check_probe(client, state, probe))
        self.begun = True
        eos_ids, adapter = self.policy.eos_ids, self.policy.adapter is not None
        rows = [(n, r.prompt_tokens, key) for n, r in enumerate(requests) for key in r.keys]
        sampled = self.pool.spread(
            [
                encode_request(prompt, sampling_params(key, sampling, eos_ids), adapter=adapter)
                for _, prompt, key in rows
            ],
            lambda client, _, body: self._sample(client, body, sampling.max_tokens),
            prefixes=[n for n, _, _ in rows],
            lanes=self.settings.max_batch,
        )
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        answers = iter(completion(one, self.version, eos_ids, stops) for one in sampled)
        return [tuple(next(answers) for _ in request.keys) for request in requests]

    def _sample(self, client: VllmClient, body: bytes, max_tokens: int) -> Sampled:
        content = client.generate(body, max_response_bytes(max_tokens))
        sampled = decode_response(content, self.policy.vocab, max_tokens)
        if sampled.version != self.wanted:
            raise ServerUnavailable(other_weights(sampled.version, self.wanted))
        return sampled

    def _connect(self, client: VllmClient) -> VllmState:
        state = client.state()
        self._check_model(client.url, state)
        if not self.begun:
            return state
        if not state.version.startswith((f"{self.run}:", "default", "broken")):
            raise ServerUnavailable(ANOTHER_RUN)
        return self._update(client, state)

    def _update(self, client: VllmClient, state: VllmState) -> VllmState:
        """Give it the present weights where it has others, or wait until the writer has."""
        if state.version == self.wanted:
            return state
        if self.writer:
            with self._saving:  # PEFT changes an adapter's config while it saves it
                stream = policy_stream(self.policy, getattr(torch, state.dtype))
            client.push(stream, self.wanted)
            return state.model_copy(update={"version": self.wanted})
        deadline = time.monotonic() + self.settings.timeout
        while (state := client.state()).version != self.wanted:
            if time.monotonic() > deadline:
                raise ServerUnavailable(other_weights(state.version, self.wanted))
            time.sleep(POLL_SECONDS)
        return state

    def _check_probe(
        self, client: VllmClient, state: VllmState, ours: tuple[float, ...]
    ) -> VllmState:
        """Whether a server finds the same tokens as likely as the policy does. Below an adapter
        the weights are its own, and a wrong RoPE or precision shows here and nowhere else."""
        tokens = probe_tokens(self.policy.vocab)
        body = encode_probe(tokens, adapter=self.policy.adapter is not None)
        theirs = decode_probe(client.generate(body, max_response_bytes(len(tokens))), tokens)
        exact = state.dtype == "float32" and not self.policy.rounds
        gap = probe_gap(ours, theirs, exact=exact)
        if gap is not None:
            raise ModelError(
                f"the vLLM server {client.url} gives the same tokens other log-probs than the "
                f"policy, by {gap} on average, with the same weights in it. Start it with the "
                "recipe's `model:` and precision"
            )
        return state

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

    def _check_lengths(self, requests: Sequence[Request], sampling: Sampling) -> None:
        longest = max((len(r.prompt_tokens) for r in requests), default=0) + sampling.max_tokens
        states = [server.state for server in self.pool.servers if server.state]
        places = min((state.positions for state in states), default=longest)
        if longest > places:
            raise ModelError(
                f"a prompt with its answer has up to {longest} tokens, and a vLLM server takes "
                f"{places}: start it with --max-model-len {longest}"
            )


def other_weights(version: str, wanted: str) -> str:
    if version == "default":
        return "it was started again and has the weights that it was started with"
    if version.partition(":")[0] != wanted.partition(":")[0]:
        return ANOTHER_RUN
    return f"it has weights of version {version.partition(':')[2]}, not {wanted.partition(':')[2]}"


def vllm_servers(policy: Policy, config: Config) -> VllmServers:
    check_adapter(config)
    return VllmServers(policy, config.engine, longest=longest_row(config))


def check_adapter(config: Config) -> None:
    if config.adapter is not None and config.adapter.dora:
        raise ConfigError(
            "vLLM cannot serve DoRA adapters: set adapter.dora=false, or engine.kind=native"
        )


def longest_row(config: Config) -> int:
    """Tokens of the longest prompt with its longest answer, in training and in evaluation."""
    answer = max(config.rollout.max_completion_tokens, config.eval.max_completion_tokens or 0)
    return config.rollout.max_prompt_tokens + answer
