"""The KV cache of sampling: one slot of fixed length for each running answer; decode attention.

A prompt's keys and values are computed once for its group and copied into the slot of each answer
as it is admitted. Running answers always fill slots 0 to n - 1: when one ends and nothing waits,
the last moves into its slot, so no work is done for finished answers.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions
from groupwise.policy.compiled import uncompiled
from groupwise.rollout.native.prefill import Prefill


class SlotKVCache:
    """(slots, length, heads, head size) keys and values per layer; attention of a decode step.

    Our Triton kernel reads them as they are. Without it a head's positions are contiguous in
    memory, and this is a transposed view: matrix products would copy any other layout.
    """

    def __init__(self, like: Prefill, slots: int, slot_length: int) -> None:
        self.slots, self.slot_length = slots, slot_length
        self.device = next(iter(like.kv.values()))[0].device
        same_shape = all(k.shape == v.shape for k, v in like.kv.values())
        self.has_kernel = same_shape and _load_decode_kernel(self.device)

        def allocate(x: Tensor) -> Tensor:
            heads, head_size = x.shape[1:]
            if self.has_kernel:
                return x.new_zeros(slots, slot_length, heads, head_size)
            return x.new_zeros(slots, heads, slot_length, head_size).transpose(1, 2)

        self.layers = {layer: (allocate(k), allocate(v)) for layer, (k, v) in like.kv.items()}
        self.kv_lens: Tensor = torch.zeros(0)
        """Tokens in each running answer's slot before the present step."""
        self.running: Tensor = torch.zeros(0, dtype=torch.long)
        """The slots of running answers."""
        self.max_kv_len = 0
        """Positions of a slot that any running answer may see in the present step."""
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self.current_kv: tuple[Tensor, Tensor] = self.layers[min(self.layers)]
        """Keys and values of the layer that compiled code is at."""

    def begin_step(self, kv_lens_n: Tensor, max_kv_len: int) -> None:
        self.kv_lens, self.max_kv_len = kv_lens_n, max_kv_len
        if not self.has_kernel:
            self.running = torch.arange(len(kv_lens_n), device=kv_lens_n.device)
        self._masks.clear()

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        """Store each running answer's new key and value, and attend to its slot."""
        if not self.has_kernel:
            return self._without_kernel(module, q, k, v, options)
        # Asking for the layer's index would make compiled code one layer's own.
        compiled = torch.compiler.is_compiling()
        keys, values = self.current_kv if compiled else self.layers[module.layer_idx]
        window, softcap = options.sliding_window or 0, options.softcap or 0.0
        return torch.ops.groupwise.decode_attention(
            q, k, v, keys, values, self.kv_lens, options.scale, window, softcap
        )

    @uncompiled
    def _without_kernel(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        keys, values = self.layers[module.layer_idx]
        keys[self.running, self.kv_lens] = k[:, :, 0]
        values[self.running, self.kv_lens] = v[:, :, 0]
        visible = slice(0, len(self.kv_lens)), slice(0, self.max_kv_len)
        all_k, all_v = (x[visible].transpose(1, 2).flatten(0, 1) for x in (keys, values))
        return _decode_attention(q, all_k, all_v, self._mask(options, k.shape[1]), options)

    def _mask(self, options: AttentionOptions, kv_heads: int) -> Tensor:
        """(n * kv_heads, 1, max_kv_len): 0 where a token sees its slot (up to itself, or its
        window's part of that), minus infinity elsewhere."""
        window = options.sliding_window
        if (window, kv_heads) not in self._masks:
            positions = torch.arange(self.max_kv_len, device=self.kv_lens.device)
            hidden = positions[None, :] > self.kv_lens[:, None]
            if window is not None:
                hidden |= self.kv_lens[:, None] - positions[None, :] >= window
            dtype = self.current_kv[0].dtype
            mask = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)
            self._masks[window, kv_heads] = mask.repeat_interleave(kv_heads, 0)[:, None]
        return self._masks[window, kv_heads]

    def admit(self, prefill: Prefill, prompt_of_slot: Mapping[int, int]) -> None:
        """Copy prompts into slots: which slot gets which of the prefill's prompts."""
        slots, positions, sources = [], [], []
        for slot, prompt in prompt_of_slot.items():
            seqlen = prefill.seqlen(prompt)
            slots.append(torch.full((seqlen,), slot))
            positions.append(torch.arange(seqlen))
            sources.append(prefill.cu_seqlens[prompt] + torch.arange(seqlen))
        slot, position, source = (torch.cat(x).to(self.device) for x in (slots, positions, sources))
        for layer, kv in prefill.kv.items():
            for cached, new in zip(self.layers[layer], kv, strict=True):
                cached[slot, position] = new[source]

    def move(self, sources: list[int], targets: list[int], max_kv_len: int) -> None:
        """Copy slots `sources` to slots `targets`, of each the first `max_kv_len` positions."""
        for kv in self.layers.values():
            for cached in kv:
                cached[targets, :max_kv_len] = cached[sources, :max_kv_len]


def _decode_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: AttentionOptions
) -> Tensor:
    """(n, H, 1, D) queries, (n * K, L, D) keys and values to (n, 1, H, D)."""
    rows, heads, _, size = q.shape
    q = q.reshape(len(k), -1, size)  # query heads of one key head are further queries of it
    if options.softcap is None:
        scores = torch.baddbmm(mask, q, k.mT, alpha=options.scale)
    else:
        scores = torch.tanh(q @ k.mT * (options.scale / options.softcap)) * options.softcap + mask
    return (scores.softmax(-1) @ v).view(rows, 1, heads, v.shape[-1])


def _load_decode_kernel(device: torch.device) -> bool:
    """Register our Triton kernel, where there is Triton to run it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    importlib.import_module("groupwise.rollout.native.decode_kernel")
    return True


def bytes_per_slot(like: Prefill, slot_length: int) -> int:
    return sum(x[0].numel() * x.element_size() * slot_length for kv in like.kv.values() for x in kv)
