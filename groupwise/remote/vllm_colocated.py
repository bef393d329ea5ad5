"""vLLM in the trainer's process: weights go from tensor to tensor, and nothing crosses a network.

With `engine.sleep` on CUDA vLLM gives its share of the memory back after each call of `generate`:
its weights move to CPU memory and its cache is dropped (level 1 of its sleep mode). On a CPU vLLM
cannot sleep, and the setting does nothing there.

One process only: where a run has several, each would want a vLLM of its own on the same device.
"""

import logging
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from groupwise.config import Config
from groupwise.errors import ConfigError, MissingExtraError, ModelError
from groupwise.policy.load import Policy
from groupwise.remote.vllm_client import named_weights
from groupwise.remote.vllm_command import EXTENSION, base_model, lora_rank
from groupwise.remote.vllm_payload import ADAPTER, Sampled, completion, sampling_params
from groupwise.remote.vllm_servers import check_adapter, longest_row
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling

log = logging.getLogger("groupwise")

QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Set unless the user has: no telemetry, and vLLM's own log only where something is wrong."""


class VllmColocated:
    """VllmColocated(policy, config) loads the recipe's model a second time."""

    def __init__(self, policy: Policy, config: Config) -> None:
        check_adapter(config)
        self.policy = policy
        self.longest = longest_row(config)
        self.version = 0
        self.loaded: int | None = None
        self.sleeps = config.engine.sleep and policy.device.type == "cuda"
        self.asleep = False
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.llm = start_vllm(policy, config, self.longest, self.sleeps)

    def sync(self, version: int) -> None:
        """The next `generate` takes the policy's weights, unless it has this version already."""
        self.version = version

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        from vllm.sampling_params import SamplingParams

        rows = [(request.prompt_tokens, key) for request in requests for key in request.keys]
        if not rows:
            return [() for _ in requests]
        longest = max(len(prompt) for prompt, _ in rows) + sampling.max_tokens
        if longest > self.longest:
            raise ModelError(f"{longest} tokens in a row, and vLLM was started for {self.longest}")
        eos = self.policy.eos_ids
        self._wake()
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt, _ in rows],
            [SamplingParams(**sampling_params(key, sampling, eos)) for _, key in rows],
            lora_request=self._adapter(),
            use_tqdm=False,
        )
        if self.sleeps:
            self.llm.sleep(level=1)
            self.asleep = True
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        answers = iter(completion(sampled(output), self.version, eos, stops) for output in outputs)
        return [tuple(next(answers) for _ in request.keys) for request in requests]

    def _wake(self) -> None:
        """Awake, and with the policy's present weights."""
        if self.asleep:
            torch.cuda.empty_cache()  # what training holds and does not use is vLLM's now
            self.llm.wake_up()
            self.asleep = False
        if self.loaded == self.version:
            return
        if self.policy.adapter is None:
            weights = iter(named_weights(self.policy).items())
            self.llm.collective_rpc("groupwise_reload", kwargs={"weights_iterator": weights})
            self.llm.reset_prefix_cache()
        else:
            folder = tempfile.TemporaryDirectory(prefix="groupwise-")
            self.policy.adapter.save(pathlib.Path(folder.name))
            self.folder = folder  # deletes the one before
        self.loaded = self.version

    def _adapter(self) -> Any:
        """A new number and folder for each version: vLLM then keeps them apart."""
        if self.policy.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        assert self.folder is not None
        return LoRARequest(ADAPTER, self.version + 1, self.folder.name)


def start_vllm(policy: Policy, config: Config, longest: int, sleeps: bool) -> Any:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise ConfigError(
            "vLLM in the trainer's process works in runs of one process: start servers "
            "(`groupwise serve vllm MODEL`) and name them in engine.urls"
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its engine in this process, not a child
    try:
        from vllm.entrypoints.llm import LLM
    except ModuleNotFoundError as error:
        raise MissingExtraError("vllm", "vllm") from error
    source = base_model(config.model)
    lora: dict[str, Any] = {}
    if config.adapter is not None:
        rank = lora_rank(config.adapter.rank)
        lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    set_threads = torch.set_num_threads
    try:
        return LLM(
            model=source,
            dtype=str(policy.model.dtype).removeprefix("torch."),
            seed=0,
            max_model_len=longest,
            max_num_seqs=config.engine.max_batch,
            gpu_memory_utilization=config.engine.memory_share,
            enforce_eager=config.engine.eager,
            enable_sleep_mode=sleeps,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            worker_extension_cls=EXTENSION,
            **lora,
        )
    except (ValueError, RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"vLLM cannot serve {config.model!r} here: {reason}\n"
            "engine.memory_share says how much memory it may use; engine.kind=auto does without it"
        ) from error
    finally:
        torch.set_num_threads = set_threads  # on a CPU vLLM replaces it


def sampled(output: Any) -> Sampled:
    answer = output.outputs[0]
    tokens = tuple(answer.token_ids)
    assert answer.finish_reason in ("stop", "length") and len(answer.logprobs) == len(tokens)
    steps = zip(tokens, answer.logprobs, strict=True)
    logprobs = tuple(min(step[token].logprob, 0.0) for token, step in steps)
    return Sampled(tokens, logprobs, answer.finish_reason, "")
