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
from groupwise.policy.compiled import compiled, decoder_layers
from groupwise.rollout.native.cache import SlotCache
from groupwise.rollout.native.joined import Joined


class CompiledLayers:
    def __init__(self, model: Any) -> None:
        self.layers = decoder_layers(model) or []
        assert self.layers
        self.joined = Joined(self.layers)

    @contextmanager
    def instead(self, cache: SlotCache) -> Iterator[None]:
        """While this is open, the model's layers are the compiled ones, on the slots of `cache`."""

        def run(number: int, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            cache.present = cache.layers[number]
            return compiled(type(layer))(layer, *args, **kwargs)

        forwards = {layer: partial(run, n, layer) for n, layer in enumerate(self.layers)}
        with self.joined.instead(), replaced_forwards(forwards):
            yield


def why_not_compiled(model: Any, cache: SlotCache) -> str | None:
    """Why this model's layers cannot be compiled for decoding; None when they can."""
    layers = decoder_layers(model)
    if layers is None:
        return "its decoder layers are not found"
    if len({type(layer) for layer in layers}) > 1:
        return "its decoder layers differ"
    if sorted(cache.layers) != list(range(len(layers))):
        return "its layers are numbered in another way"
    return "Triton is not there" if not cache.kernel else None
