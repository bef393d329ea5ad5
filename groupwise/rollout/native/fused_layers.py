"""Decoder layers of Llama's kind, computed by our own kernels: decode steps, on CUDA prefills too.

A layer is a few calls: of Triton kernels on CUDA (fused_layers_cuda.py), of C on a CPU
(fused_layers_cpu.py). Whether a model has such layers is found by its modules, and then tried: all
layers must give what the model's own give. Other models' layers run as they are or are compiled.
What an adapter adds is zero in a fresh one, so it is not tried: tests compare it.
"""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.compat.torch_modules import replaced_forwards
from groupwise.errors import ConfigError
from groupwise.policy.attention import AttentionOptions, use_attention
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.policy import Policy
from groupwise.rollout.cpu_kernels import compiled_kernels
from groupwise.rollout.native.llama_layer import (
    HeadNorms,
    RunLayers,
    is_llama_like,
    layer_weights,
)

log = logging.getLogger("groupwise")

Rotary = tuple[Tensor, Tensor]
"""(n, D) cosines and sines of the rows' positions."""


class RotaryAttention(Protocol):
    """Attention of a decode step, or on CUDA of a prefill."""

    def with_rotary(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotary: Rotary,
        options: AttentionOptions,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Of (n, heads, 1, D) queries and keys that have no positions yet, nor these norms."""
        ...


@dataclass(frozen=True)
class LayerKernels:
    """What runs the layers of a decode step, and how they are tried."""

    run: RunLayers
    rows: tuple[int, ...]
    """With so many at once: as few and as many as are computed in different ways."""
    tolerance: float
    """How far from the model's own layers it may be, relative to these."""
    least_rank: int = 1
    """The ranks of adapters are filled up to a power of two that is no smaller; 1: to none."""


NO_FP8 = "fp8: this model's layers cannot sample in 8 bits here"
FP8_TOLERANCE = 0.3
"""How far from the model's own layers those with weights in 8 bits may be."""


class FusedLayers:
    def __init__(self, policy: Policy, kernels: LayerKernels, *, fp8: bool = False) -> None:
        self.kernels = kernels
        self.modules = decoder_layers(policy.model) or []
        self.final_norm: Any = getattr(policy.model.base_model, "norm", None)
        least_rank = kernels.least_rank
        self.layers = [layer_weights(module, least_rank=least_rank) for module in self.modules]
        self.options = self._tried(policy, kernels.tolerance)
        if fp8:
            self.layers = [layer.in_fp8() for layer in self.layers]
            self._tried(policy, FP8_TOLERANCE)
        self.policy, self.addresses = policy, weight_addresses(policy)

    @property
    def is_valid(self) -> bool:
        """Whether the model's weights are where they were."""
        return weight_addresses(self.policy) == self.addresses

    @contextmanager
    def in_use(self, attention: RotaryAttention) -> Iterator[None]:
        """While this is open, the model's layers and its last norm are computed here."""

        def attend(n: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
            norms = self.layers[n].head_norms
            return attention.with_rotary(n, q, k, v, rotary, self.options[n], norms)

        with self._replaced(attend):
            yield

    def follow_weights(self) -> None:
        """The model's weights have changed where they are."""
        for layer in self.layers:
            layer.follow_weights()

    @contextmanager
    def _replaced(self, attend: Any) -> Iterator[None]:
        """The first layer's call runs all of them and the norm; the others pass it on."""

        def run(hidden: Tensor, *_: Any, position_embeddings: Rotary, **__: Any) -> Tensor:
            tokens, size = hidden.shape[:2], hidden.shape[2]
            cos, sin = (x.expand(*tokens, -1).flatten(0, 1) for x in position_embeddings)
            attended = partial(self._attended, (cos, sin), attend)
            norm, rows = self.final_norm.weight, hidden.reshape(-1, size)
            return self.kernels.run(self.layers, norm, rows, attended).view_as(hidden)

        def same(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            return hidden

        others = [*self.modules[1:], self.final_norm]
        with replaced_forwards({self.modules[0]: run, **dict.fromkeys(others, same)}):
            yield

    def _attended(self, rotary: Rotary, attend: Any, n: int, qkv: Tensor) -> Tensor:
        layer = self.layers[n]
        sizes = [layer.heads, layer.kv_heads, layer.kv_heads]
        q, k, v = qkv.view(len(qkv), -1, 1, layer.head_size).split(sizes, dim=1)
        return attend(n, q, k, v, rotary).reshape(len(qkv), -1)

    @torch.no_grad()
    def _tried(self, policy: Policy, tolerance: float) -> list[AttentionOptions]:
        """What each layer asks of its attention; an error if our layers give something else."""
        asked: list[AttentionOptions] = []

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """Not attention, but it depends on all of them."""
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            return (q + k.flip(-1) + v).transpose(1, 2)

        def look(module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
            asked.append(options)
            return mix(q, k, v)

        def attend(n: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
            cos, sin = (x[:, None, None] for x in rotary)
            if norms := self.layers[n].head_norms:
                q, k = norms(q, k)
            q, k = (x * cos + _half_rotated(x) * sin for x in (q, k))
            return mix(q, k, v)

        for rows in self.kernels.rows:
            asked.clear()
            tokens = torch.arange(rows, device=policy.device)[:, None] % policy.vocab
            run = partial(policy.body, input_ids=tokens, position_ids=tokens + 7)
            with use_attention(policy.model, look):
                expected = run().float()
            with self._replaced(attend):
                gap = (run().float() - expected).norm() / expected.norm()
            if not gap < tolerance:
                raise ValueError(f"its layers compute something else (gap {gap:.2g})")
        if len(asked) != len(self.layers) or any(each.softcap for each in asked):
            raise ValueError("its attention is of another kind")
        return asked


def _half_rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def weight_addresses(policy: Policy) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in policy.model.parameters())


def fused_layers(policy: Policy, *, fp8: bool = False) -> FusedLayers | None:
    """The model's layers by our kernels; None where those cannot compute them, and with `fp8`,
    which nothing else can, an error."""
    layers: list[Any] = list(decoder_layers(policy.model) or [])
    kernels = _kernels_for(policy.device, layers) if layers else None
    if kernels is None:
        if fp8:
            raise ConfigError(f"{NO_FP8}: they are not of Llama's kind in bf16")
        return None
    try:
        return FusedLayers(policy, kernels, fp8=fp8)
    except Exception as error:  # a compiler can fail in any way; there are other ways to sample
        reason = str(error).split("\n")[0]
        if fp8:
            raise ConfigError(f"{NO_FP8}: {reason}") from error
        log.info("sampling without fused layers: %s", reason)
        return None


def _kernels_for(device: torch.device, layers: list[Any]) -> LayerKernels | None:
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        if not all(is_llama_like(layer, torch.bfloat16, 64) for layer in layers):
            return None
        from groupwise.rollout.native.fused_layers_cuda import LEAST_RANK, run_layers

        return LayerKernels(run_layers, rows=(3, 40, 100), tolerance=0.05, least_rank=LEAST_RANK)
    if device.type != "cpu" or compiled_kernels() is None:
        return None
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        if all(is_llama_like(layer, dtype) for layer in layers):
            from groupwise.rollout.native.fused_layers_cpu import run_layers

            return LayerKernels(run_layers, rows=(3, 8), tolerance=tolerance)
    return None
