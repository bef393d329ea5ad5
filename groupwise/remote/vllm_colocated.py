"""vLLM in the trainer's process: weights go from tensor to tensor, and nothing crosses a network.

`sample` adds requests to vLLM's engine at any time, and one task takes its steps while there are
any. With `engine.sleep` on CUDA vLLM gives its share of the memory back when nothing is left to
do: its cache is dropped and its weights too (level 2 of its sleep mode), since the policy has them.
They are moved to CPU memory instead (level 1) below an adapter, which does not change them, and
where the policy may be ahead of them. On a CPU vLLM cannot sleep: there the setting does nothing.

One process only: where a run has several, each would want a vLLM of its own on the same device.
"""

import asyncio
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from groupwise.config import Config, VllmEngineSettings
from groupwise.errors import ConfigError, MissingExtraError, ModelError
from groupwise.policy.adapters import CONFIG, WEIGHTS
from groupwise.policy.load import Policy
from groupwise.policy.weights import trained_weights
from groupwise.remote.vllm_client import adapter_config, adapter_weights, checkpoint_weights
from groupwise.remote.vllm_command import EXTENSION, base_model, lora_rank
from groupwise.remote.vllm_payload import ADAPTER, Sampled, completion, sampling_params
from groupwise.remote.vllm_servers import check_adapter, longest_row
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling

log = logging.getLogger("groupwise")

QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Set unless the user has: no telemetry, and vLLM's own log only where something is wrong."""


@dataclass
class Growing:
    """An answer so far. `parts`: (first token, version) of the weights that drew it."""

    future: "asyncio.Future[Sampled]"
    parts: list[tuple[int, str]]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmColocated:
    """VllmColocated(policy, config) loads the recipe's model a second time."""

    def __init__(self, policy: Policy, config: Config) -> None:
        check_adapter(config)
        assert isinstance(config.engine, VllmEngineSettings)
        self.policy = policy
        self.longest = longest_row(config)
        self.version: int | None = None
        self.sleeps = config.engine.sleep and policy.device.type == "cuda"
        follows = policy.adapter is None and not config.timing.max_staleness
        self.level = 2 if follows else 1
        self.asleep = self.emptied = False
        """Without its cache; and without its weights."""
        self.adapter = None if policy.adapter is None else adapter_config(policy.adapter)
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.llm = start_vllm(policy, config, config.engine, self.longest, self.sleeps)
        self._growing: dict[str, Growing] = {}
        self._numbers = count()
        self._step_task: asyncio.Task[None] | None = None

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Answers that grow go on by the new weights; with adapters, by that of their beginning."""
        if version == self.version:
            for _ in weights:
                pass
            return
        if self.adapter is None:
            self._load(weights)
            for growing in self._growing.values():
                drawn = [part for part in growing.parts if part[0] < len(growing.tokens)]
                growing.parts = [*drawn, (len(growing.tokens), str(version))]
        else:
            folder = tempfile.TemporaryDirectory(prefix="groupwise-")
            named = {n: w.detach().cpu().contiguous() for n, w in adapter_weights(weights)}
            save_file(named, pathlib.Path(folder.name) / WEIGHTS)
            (pathlib.Path(folder.name) / CONFIG).write_text(self.adapter, encoding="utf-8")
            self.folder = folder  # deletes the one before, when no answer needs it any more
        self.version = version

    def close(self) -> None:
        """vLLM ends with the process."""

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        longest = len(request.prompt_tokens) + sampling.max_tokens
        if longest > self.longest:
            raise ModelError(f"{longest} tokens in a row, and vLLM was started for {self.longest}")
        if self.version is None:
            self.load_weights(0, trained_weights(self.policy).items())
        self._wake()
        eos, lora, own = self.policy.eos_ids, self._adapter(), {}
        for key in request.keys:
            params = SamplingParams(**sampling_params(key, sampling, eos))
            params.output_kind = RequestOutputKind.DELTA
            name = str(next(self._numbers))
            prompt = {"prompt_token_ids": list(request.prompt_tokens)}
            self.llm.llm_engine.add_request(name, prompt, params, lora_request=lora)
            future = asyncio.get_running_loop().create_future()
            own[name] = Growing(future, [(0, str(self.version))])
        self._growing |= own
        if self._step_task is None or self._step_task.done():
            self._step_task = asyncio.create_task(self._take_steps())
        folder = self.folder  # kept until these answers have ended
        try:
            sampled = await asyncio.gather(*(growing.future for growing in own.values()))
        finally:
            left = [name for name in own if self._growing.pop(name, None)]
            self.llm.llm_engine.abort_request(left)
        del folder
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        return tuple(completion(one, int, eos, stops) for one in sampled)

    async def _take_steps(self) -> None:
        """Steps as long as anybody waits for answers; a failure is everybody's."""
        engine = self.llm.llm_engine
        try:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    self._append(output)
                if not engine.has_unfinished_requests():
                    self._sleep()  # at once: the loop may end with the last answer
                await asyncio.sleep(0)
        except Exception as error:
            for growing in self._growing.values():
                if not growing.future.done():
                    growing.future.set_exception(error)

    def _append(self, output: Any) -> None:
        answer, growing = output.outputs[0], self._growing.get(output.request_id)
        if growing is None or growing.future.done():
            return
        tokens = list(answer.token_ids)
        growing.tokens += tokens
        steps = zip(tokens, answer.logprobs, strict=True)
        growing.logprobs += [min(step[token].logprob, 0.0) for token, step in steps]
        if output.finished:
            assert answer.finish_reason in ("stop", "length")
            del self._growing[output.request_id]
            length = len(growing.tokens)
            parts = tuple((start, label) for start, label in growing.parts if start < length)
            growing.future.set_result(
                Sampled(tuple(growing.tokens), tuple(growing.logprobs), answer.finish_reason, parts)
            )

    def _sleep(self) -> None:
        if self.sleeps:
            self.llm.sleep(level=self.level)
            self.asleep, self.emptied = True, self.level == 2

    def _wake(self) -> None:
        """With weights, first, and with a cache."""
        if self.emptied:
            self._load(trained_weights(self.policy).items())
        if self.asleep:
            torch.cuda.empty_cache()  # what training holds and does not use is vLLM's now
            self.llm.wake_up(tags=["kv_cache"] if self.level == 2 else None)
            self.asleep = False

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        if self.asleep:
            torch.cuda.empty_cache()
        if self.asleep and self.level == 1:
            self._wake()
        if self.emptied:
            self.llm.wake_up(tags=["weights"])
            self.emptied = False
        named = iter(checkpoint_weights(self.policy, weights))
        self.llm.collective_rpc("groupwise_reload", kwargs={"weights_iterator": named})
        # Of answers that grow, too: keys and values are computed again by the new weights.
        self.llm.reset_prefix_cache(reset_running_requests=True)

    def _adapter(self) -> Any:
        """A new number and folder for each version: vLLM then keeps them apart."""
        if self.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        assert self.folder is not None and self.version is not None
        return LoRARequest(ADAPTER, self.version + 1, self.folder.name)


def start_vllm(
    policy: Policy, config: Config, engine: VllmEngineSettings, longest: int, sleeps: bool
) -> Any:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise ConfigError(
            "vLLM in the trainer's process works in runs of one process: start servers "
            "(`groupwise serve vllm MODEL`) and name them in place.urls"
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
            max_num_seqs=engine.max_batch,
            gpu_memory_utilization=engine.memory_share,
            enforce_eager=engine.eager,
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
