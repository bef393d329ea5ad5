"""Keys and values in slots: one row of fixed length for each answer being sampled.

A prompt is computed once for its group and copied into the slot of each answer as it is admitted.
Active answers always fill slots 0 to n - 1: when one ends and nothing waits, the last moves into
its place, so no work is done for rows that are finished.
"""

import importlib.util
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.attention import Form, grouped
from groupwise.policy.pieces import Pieces


class Prefill:
    """Attention over packed prompts that keeps their keys and values, per layer."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self.bounds = [0, *accumulate(lengths)]
        self.attend = Pieces([[length] for length in lengths], device)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        self.kept[module.layer_idx] = (k[0].transpose(0, 1), v[0].transpose(0, 1))
        return self.attend(module, q, k, v, form)

    def length(self, place: int) -> int:
        return self.bounds[place + 1] - self.bounds[place]


class SlotCache:
    """(slots, length, heads, size) keys and values per layer; attention over the active slots."""

    def __init__(self, like: Prefill, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.device = next(iter(like.kept.values()))[0].device
        self.layers = {
            layer: (
                k.new_zeros(slots, length, *k.shape[1:]),
                v.new_zeros(slots, length, *v.shape[1:]),
            )
            for layer, (k, v) in like.kept.items()
        }
        self.fill: Tensor = torch.zeros(0)
        """Tokens in each active slot before the present step."""
        self.places: Tensor = torch.zeros(0, dtype=torch.long)
        """Where the new tokens' keys go, slots one after the other."""
        self.reach = 0
        """Places of a slot that any active answer may see in the present step."""
        self._masks: dict[int | None, Tensor] = {}
        self.present: tuple[Tensor, Tensor] = self.layers[min(self.layers)]
        """Keys and values of the layer that compiled code is at."""
        same = all(keys.shape == values.shape for keys, values in self.layers.values())
        self.kernel = same and _kernel_is_there(self.device)

    def begin_step(self, fill_n: Tensor, reach: int) -> None:
        self.fill, self.reach = fill_n, reach
        if not self.kernel:
            first = torch.arange(len(fill_n), device=fill_n.device) * self.length
            self.places = first + fill_n
        self._masks.clear()

    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        # Asking for the layer's number would make compiled code one layer's own.
        compiled = torch.compiler.is_compiling()
        keys, values = self.present if compiled else self.layers[module.layer_idx]
        if self.kernel:
            window, softcap = form.window or 0, form.softcap or 0.0
            return torch.ops.groupwise.attend_slots(
                q, k, v, keys, values, self.fill, form.scale, window, softcap
            )
        keys.flatten(0, 1).index_copy_(0, self.places, k[:, :, 0])
        values.flatten(0, 1).index_copy_(0, self.places, v[:, :, 0])
        seen = slice(0, len(self.fill)), slice(0, self.reach)
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

    def admit(self, prefill: Prefill, prompts: Mapping[int, int]) -> None:
        """Copy prompts into slots: `prompts` says which slot gets which of the prefill's."""
        lengths = {place: prefill.length(place) for place in prompts.values()}
        sources = [prefill.bounds[p] + torch.arange(lengths[p]) for p in prompts.values()]
        targets = [s * self.length + torch.arange(lengths[p]) for s, p in prompts.items()]
        source, target = (torch.cat(x).to(self.device) for x in (sources, targets))
        for layer, pair in prefill.kept.items():
            for store, new in zip(self.layers[layer], pair, strict=True):
                store.flatten(0, 1)[target] = new[source]

    def move(self, sources: list[int], targets: list[int], reach: int) -> None:
        for pair in self.layers.values():
            for store in pair:
                store[targets, :reach] = store[sources, :reach]


def _kernel_is_there(device: torch.device) -> bool:
    """Our kernel, where there is Triton to run it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    importlib.import_module("groupwise.rollout.native.kernel")
    return True


def slot_bytes(like: Prefill, length: int) -> int:
    """Memory of one slot."""
    return sum(
        x[0].numel() * x.element_size() * length for pair in like.kept.values() for x in pair
    )
