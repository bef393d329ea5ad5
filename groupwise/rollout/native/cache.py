"""Keys and values in slots: one row of fixed length for each answer being sampled.

A prompt is computed once for its group and copied into the slot of each answer as it is admitted.
Active answers always fill slots 0 to n - 1: when one ends and nothing waits, the last moves into
its place, so no work is done for rows that are finished.
"""

import itertools

import torch
from torch import Tensor

from groupwise.rollout.native import flash
from groupwise.rollout.native.attention import Form, causal, grouped


class Prefill:
    """Attention over packed prompts that keeps their keys and values, per layer."""

    def __init__(self, lengths: list[int]) -> None:
        self.bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        self.kept[layer] = (k[0].transpose(0, 1), v[0].transpose(0, 1))
        if flash.usable(q, form):
            return flash.prompts(q, k, v, self.bounds, form)
        pieces = itertools.pairwise(self.bounds)
        return torch.cat(
            [causal(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], form) for a, b in pieces], dim=1
        )

    def prompt(self, index: int) -> dict[int, tuple[Tensor, Tensor]]:
        """One prompt's (length, heads, size) keys and values in every layer."""
        a, b = self.bounds[index], self.bounds[index + 1]
        return {layer: (k[a:b], v[a:b]) for layer, (k, v) in self.kept.items()}


class SlotCache:
    """(slots, length, heads, size) keys and values per layer; attention over the active slots."""

    def __init__(self, like: Prefill, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.device = next(iter(like.kept.values()))[0].device
        self.layers = {
            layer: tuple(x.new_zeros(slots, length, *x.shape[1:]) for x in pair)
            for layer, pair in like.kept.items()
        }
        self.fill: Tensor = torch.zeros(0)
        """Tokens in each active slot before the present step."""
        self.reach = 0
        """Places of a slot that any active answer may see in the present step."""
        self._masks: dict[int | None, Tensor] = {}

    def begin_step(self, fill_n: Tensor, reach: int) -> None:
        self.fill, self.reach = fill_n, reach
        self._masks.clear()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        keys, values = self.layers[layer]
        rows = torch.arange(len(self.fill), device=q.device)
        keys[rows, self.fill] = k[:, :, 0]
        values[rows, self.fill] = v[:, :, 0]
        if flash.usable(q, form):
            return flash.slots(q, keys, values, self.fill, form)
        seen = slice(0, len(rows)), slice(0, self.reach)
        return grouped(
            q, keys[seen].transpose(1, 2), values[seen].transpose(1, 2), self._mask(form), form
        )

    def _mask(self, form: Form) -> Tensor:
        """(n, 1, 1, reach): a token sees its slot up to itself, or its window's part of that."""
        if form.window not in self._masks:
            places = torch.arange(self.reach, device=self.fill.device)
            visible = places[None, :] <= self.fill[:, None]
            if form.window is not None:
                visible &= self.fill[:, None] - places[None, :] < form.window
            self._masks[form.window] = visible[:, None, None]
        return self._masks[form.window]

    def admit(self, prompt: dict[int, tuple[Tensor, Tensor]], first: int, count: int) -> None:
        """Copy one prompt into slots `first` to `first + count`."""
        for layer, pair in prompt.items():
            for store, new in zip(self.layers[layer], pair, strict=True):
                store[first : first + count, : len(new)] = new

    def move(self, sources: list[int], targets: list[int], reach: int) -> None:
        for pair in self.layers.values():
            for store in pair:
                store[targets, :reach] = store[sources, :reach]


def slot_bytes(like: Prefill, length: int) -> int:
    """Memory of one slot."""
    return sum(
        x[0].numel() * x.element_size() * length for pair in like.kept.values() for x in pair
    )
