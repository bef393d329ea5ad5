"""Decoder layers, compiled for a decode step: few kernels instead of many small ones.

All layers of a model have the same code, so one of them is compiled and all are run by it: seconds,
not the minute that compiling the whole model takes. Linear layers that read the same input (query,
key and value; gate and up) become one product: their weights are moved next to each other in
memory, and each is a view of its part. Nothing else about the model changes; its parameters stay
what they were for the optimizer and for saving.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.policy.compiled import decoder_layers
from groupwise.rollout.native.cache import SlotCache

log = logging.getLogger("groupwise")

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers of one module that are called with the same input."""


class First(nn.Module):
    """The first of several linear layers that read the same input: it computes all of them."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = _side_by_side([linear.weight for linear in linears])
        has_bias = linears[0].bias is not None
        self.bias = _side_by_side([linear.bias for linear in linears]) if has_bias else None
        self.sizes = [linear.out_features for linear in linears]
        self.others = [Next() for _ in linears[1:]]

    def forward(self, x: Tensor) -> Tensor:
        mine, *rest = F.linear(x, self.weight, self.bias).split(self.sizes, -1)
        for other, part in zip(self.others, rest, strict=True):
            other.part = part
        return mine


class Next(nn.Module):
    """One of the others: its part is there already."""

    part: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        part, self.part = self.part, None
        assert part is not None
        return part


class CompiledLayers:
    def __init__(self, model: Any) -> None:
        self.layers = decoder_layers(model) or []
        assert self.layers
        self.joined = [place for layer in self.layers for place in join_projections(layer)]
        self.run = torch.compile(type(self.layers[0]).forward, dynamic=True)

    @contextmanager
    def instead(self, cache: SlotCache) -> Iterator[None]:
        """While this is open, the model's layers are the compiled ones, on the slots of `cache`."""

        def run(number: int, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            cache.present = cache.layers[number]
            return self.run(layer, *args, **kwargs)

        before = [(parent, name, getattr(parent, name)) for parent, name, _ in self.joined]
        for parent, name, new in self.joined:
            setattr(parent, name, new)
        for number, layer in enumerate(self.layers):
            layer.forward = partial(run, number, layer)
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward
            for parent, name, linear in before:
                setattr(parent, name, linear)


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


def join_projections(layer: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, replacement) for each linear layer that is computed with others."""
    found: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in layer.modules():
        for names in TOGETHER:
            linears = [getattr(parent, name, None) for name in names]
            plain = [linear for linear in linears if type(linear) is nn.Linear]
            biases = {linear.bias is None for linear in plain}
            if len(plain) == len(names) and len(biases) == 1:
                first = First(plain)
                found += [
                    (parent, n, m) for n, m in zip(names, [first, *first.others], strict=True)
                ]
    return found


@torch.no_grad()
def _side_by_side(parameters: Sequence[Tensor]) -> nn.Parameter:
    """One tensor with all of them; they become views of it."""
    joint = torch.cat([p.data for p in parameters])
    for parameter, view in zip(parameters, joint.split([len(p) for p in parameters]), strict=True):
        parameter.data = view
    return nn.Parameter(joint, requires_grad=False)
