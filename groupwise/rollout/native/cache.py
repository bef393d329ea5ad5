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

from groupwise.policy.attention import AttentionOptions
from groupwise.policy.compiled import uncompiled
from groupwise.policy.packed_attention import PackedAttention


class Prefill:
    """Attention over packed prompts that keeps their keys and values, per layer."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self.bounds = [0, *accumulate(lengths)]
        self.attend = PackedAttention([[length] for length in lengths], device)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.kept[module.layer_idx] = (k[0].transpose(0, 1), v[0].transpose(0, 1))
        return self.attend(module, q, k, v, options)

    def length(self, place: int) -> int:
        return self.bounds[place + 1] - self.bounds[place]


class SlotCache:
    """(slots, length, heads, size) keys and values per layer; attention over the active slots.

    Our kernel reads them as they are. Without it a head's places lie side by side in memory, and
    this is a view of them: matrix products take them so, and would copy anything else.
    """

    def __init__(self, like: Prefill, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.device = next(iter(like.kept.values()))[0].device
        same = all(k.shape == v.shape for k, v in like.kept.values())
        self.kernel = same and _kernel_is_there(self.device)

        def store(x: Tensor) -> Tensor:
            heads, size = x.shape[1:]
            if self.kernel:
                return x.new_zeros(slots, length, heads, size)
            return x.new_zeros(slots, heads, length, size).transpose(1, 2)

        self.layers = {layer: (store(k), store(v)) for layer, (k, v) in like.kept.items()}
        self.fill: Tensor = torch.zeros(0)
        """Tokens in each active slot before the present step."""
        self.rows: Tensor = torch.zeros(0, dtype=torch.long)
        """The active slots."""
        self.reach = 0
        """Places of a slot that any active answer may see in the present step."""
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self.present: tuple[Tensor, Tensor] = self.layers[min(self.layers)]
        """Keys and values of the layer that compiled code is at."""

    def begin_step(self, fill_n: Tensor, reach: int) -> None:
        self.fill, self.reach = fill_n, reach
        if not self.kernel:
            self.rows = torch.arange(len(fill_n), device=fill_n.device)
        self._masks.clear()

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        if not self.kernel:
            return self._by_heads(module, q, k, v, options)
        # Asking for the layer's number would make compiled code one layer's own.
        compiled = torch.compiler.is_compiling()
        keys, values = self.present if compiled else self.layers[module.layer_idx]
        window, softcap = options.sliding_window or 0, options.softcap or 0.0
        return torch.ops.groupwise.attend_slots(
            q, k, v, keys, values, self.fill, options.scale, window, softcap
        )

    @uncompiled
    def _by_heads(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        keys, values = self.layers[module.layer_idx]
        keys[self.rows, self.fill] = k[:, :, 0]
        values[self.rows, self.fill] = v[:, :, 0]
        active = slice(0, len(self.fill)), slice(0, self.reach)
        seen_k, seen_v = (x[active].transpose(1, 2).flatten(0, 1) for x in (keys, values))
        return _one_token(q, seen_k, seen_v, self._mask(options, k.shape[1]), options)

    def _mask(self, options: AttentionOptions, heads: int) -> Tensor:
        """(n * heads, 1, reach): 0 where a token sees its slot (up to itself, or its window's
        part of that), minus infinity elsewhere."""
        if (options.sliding_window, heads) not in self._masks:
            places = torch.arange(self.reach, device=self.fill.device)
            hidden = places[None, :] > self.fill[:, None]
            if options.sliding_window is not None:
                hidden |= self.fill[:, None] - places[None, :] >= options.sliding_window
            kind = self.present[0].dtype
            mask = torch.zeros_like(hidden, dtype=kind).masked_fill_(hidden, -torch.inf)
            self._masks[options.sliding_window, heads] = mask.repeat_interleave(heads, 0)[:, None]
        return self._masks[options.sliding_window, heads]

    def admit(self, prefill: Prefill, prompts: Mapping[int, int]) -> None:
        """Copy prompts into slots: `prompts` says which slot gets which of the prefill's."""
        lengths = {place: prefill.length(place) for place in prompts.values()}
        sources = [prefill.bounds[p] + torch.arange(lengths[p]) for p in prompts.values()]
        slots = [torch.full((lengths[p],), slot) for slot, p in prompts.items()]
        places = [torch.arange(lengths[p]) for p in prompts.values()]
        source, slot, place = (torch.cat(x).to(self.device) for x in (sources, slots, places))
        for layer, pair in prefill.kept.items():
            for store, new in zip(self.layers[layer], pair, strict=True):
                store[slot, place] = new[source]

    def move(self, sources: list[int], targets: list[int], reach: int) -> None:
        for pair in self.layers.values():
            for store in pair:
                store[targets, :reach] = store[sources, :reach]


def _one_token(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: AttentionOptions) -> Tensor:
    """(n, H, 1, D) queries, (n * K, L, D) keys and values to (n, 1, H, D)."""
    rows, heads, _, size = q.shape
    q = q.reshape(len(k), -1, size)  # query heads of one key head are further queries of it
    if options.softcap is None:
        scores = torch.baddbmm(mask, q, k.mT, alpha=options.scale)
    else:
        scores = torch.tanh(q @ k.mT * (options.scale / options.softcap)) * options.softcap + mask
    return (scores.softmax(-1) @ v).view(rows, 1, heads, v.shape[-1])


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
