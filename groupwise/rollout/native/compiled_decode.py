"""Decoder layers, compiled for a decode step: few kernels instead of many small ones.

All layers of a model have the same code, so two of them are compiled and all are run by that:
seconds, not the minute that compiling the whole model takes. Two, since where one ends and the next
begins, its sum and the other's norm become one kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.compat.torch_modules import replaced_forwards
from groupwise.policy.compiled import decoder_layers
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_projections import FusedProjections
from groupwise.rollout.native.gated_mlp import gated_mlps

MOST_TOGETHER = 2
"""Layers that are compiled as one piece: the time to compile grows with them."""
LayerCall = tuple[nn.Module, tuple[Tensor, Tensor], tuple[Any, ...], dict[str, Any]]
"""A layer, its keys and values, and what it is called with beside the hidden states."""


class CompiledDecodeLayers:
    def __init__(self, model: Any) -> None:
        self.layers = decoder_layers(model) or []
        assert self.layers
        self.fused = FusedProjections(self.layers)
        self.fused.replacements += gated_mlps(self.layers, self.fused.replacements)
        count = len(self.layers)
        self.together = next(n for n in range(MOST_TOGETHER, 0, -1) if count % n == 0)

    @contextmanager
    def in_use(self, attention: DecodeAttention) -> Iterator[None]:
        """While this is open, the model's layers are the compiled ones, with this attention."""
        calls: list[LayerCall] = []
        passed_on: list[Tensor] = []

        def run(n: int, layer: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            """Layers are run when the last of those that are compiled together is called."""
            assert not calls or hidden is passed_on[0]
            passed_on[:] = [hidden]
            calls.append((layer, attention.cache.layers[n], args, kwargs))
            if len(calls) < self.together:
                return hidden
            due = tuple(calls)
            calls.clear()
            return compiled_run_layers()(attention, due, hidden)

        forwards = {layer: partial(run, n, layer) for n, layer in enumerate(self.layers)}
        with self.fused.in_use(), replaced_forwards(forwards):
            yield


@cache
def compiled_run_layers() -> Callable[..., Tensor]:
    """Not as a decorator: torch.compile loads its compiler, which is of no use on a CPU."""
    return torch.compile(run_layers, dynamic=True)


def run_layers(attention: DecodeAttention, calls: Sequence[LayerCall], hidden: Tensor) -> Tensor:
    for layer, kv, args, kwargs in calls:
        attention.current_kv = kv
        hidden = type(layer).forward(layer, hidden, *args, **kwargs)
    return hidden


def compile_problem(model: Any, attention: DecodeAttention) -> str | None:
    """Why this model's layers cannot be compiled for decoding; None when they can."""
    layers = decoder_layers(model)
    if layers is None:
        return "its decoder layers cannot be identified"
    if len({type(layer) for layer in layers}) > 1:
        return "its decoder layers are of different classes"
    if attention.cache.shape.layers != len(layers):
        return "its layer_idx does not count its decoder layers"
    return None
