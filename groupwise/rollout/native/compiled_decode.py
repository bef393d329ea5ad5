"""Decoder layers, compiled for a decode step: few kernels instead of many small ones.

All layers of a model have the same code, so one of them is compiled and all are run by it: seconds,
not the minute that compiling the whole model takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from groupwise.compat.torch_modules import replaced_forwards
from groupwise.policy.compiled import compiled_forward, decoder_layers
from groupwise.rollout.native.fused_projections import FusedProjections
from groupwise.rollout.native.kv_cache import SlotKVCache


class CompiledDecodeLayers:
    def __init__(self, model: Any) -> None:
        self.layers = decoder_layers(model) or []
        assert self.layers
        self.fused = FusedProjections(self.layers)

    @contextmanager
    def in_use(self, cache: SlotKVCache) -> Iterator[None]:
        """While this is open, the model's layers are the compiled ones, on the slots of `cache`."""

        def run(layer_idx: int, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            cache.current_kv = cache.layers[layer_idx]
            return compiled_forward(type(layer))(layer, *args, **kwargs)

        forwards = {layer: partial(run, n, layer) for n, layer in enumerate(self.layers)}
        with self.fused.in_use(), replaced_forwards(forwards):
            yield


def compile_problem(model: Any, cache: SlotKVCache) -> str | None:
    """Why this model's layers cannot be compiled for decoding; None when they can."""
    layers = decoder_layers(model)
    if layers is None:
        return "its decoder layers cannot be identified"
    if len({type(layer) for layer in layers}) > 1:
        return "its decoder layers are of different classes"
    if sorted(cache.layers) != list(range(len(layers))):
        return "its layer_idx does not count its decoder layers"
    return None if cache.has_kernel else "Triton is not installed"
