"""Attention of a decode step: every running answer's new token attends to its pages.

On CUDA our Triton kernel does it, on a CPU our C kernel (cpu_attention.py); where neither is to be
had, `page_attention.py` does.
"""

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions
from groupwise.policy.compiled import uncompiled
from groupwise.rollout.native.cpu_attention import CpuAttention
from groupwise.rollout.native.kv_cache import PagedKVCache
from groupwise.rollout.native.llama_layer import HeadNorms
from groupwise.rollout.native.page_attention import PageAttention


class DecodeAttention:
    def __init__(self, cache: PagedKVCache) -> None:
        self.cache = cache
        self.has_kernel = _load_decode_kernel(cache.device)
        on_cpu = CpuAttention.takes(cache)
        self.without_triton = CpuAttention(cache) if on_cpu else PageAttention(cache)
        self.page_table, self.kv_lens = torch.zeros(0), torch.zeros(0)
        self.current_kv = (self.page_table, self.page_table)
        """Keys and values of the layer that compiled code is at."""

    def begin_step(self, table_nw: np.ndarray, counts_n: np.ndarray, kv_lens_n: np.ndarray) -> None:
        """Rows' pages, how many each has, and the tokens that they hold before this step."""
        if self.has_kernel:
            table = torch.from_numpy(self.cache.offsets[table_nw]).to(self.cache.device)
            self.use_buffers(table, torch.from_numpy(kv_lens_n).to(self.cache.device))
        else:
            self.without_triton.begin_step(table_nw, counts_n, kv_lens_n)

    def use_buffers(self, page_table_nw: Tensor, kv_lens_n: Tensor) -> None:
        self.page_table, self.kv_lens = page_table_nw, kv_lens_n

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        """Store each running answer's new key and value, and attend to its pages."""
        if not self.has_kernel:
            return self._without_kernel(module, q, k, v, options)
        # Asking for the layer's index would make compiled code one layer's own.
        if torch.compiler.is_compiling():
            keys, values = self.current_kv
            # As parts of one tensor, both get their rotary positions from one kernel.
            q, k = torch.cat([q, k], dim=1).split([q.shape[1], k.shape[1]], dim=1)
        else:
            keys, values = self.cache.layers[module.layer_idx]
        window, softcap = options.sliding_window or 0, options.softcap or 0.0
        return torch.ops.groupwise.decode_attention(
            q, k, v, keys, values, self.page_table, self.kv_lens, options.scale, window, softcap
        )

    def with_rotary(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotary: tuple[Tensor, Tensor],
        options: AttentionOptions,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """As a call, of queries and keys that have no positions yet, nor these norms; with a kernel
        alone."""
        if isinstance(self.without_triton, CpuAttention):
            return self.without_triton(layer, q, k, v, options, rotary, norms)
        from groupwise.rollout.native.decode_kernel import launch, splits_of

        keys, values = self.cache.layers[layer]
        splits = splits_of(q, k, keys, self.page_table)
        window = options.sliding_window or 0
        return launch(
            q, k, v, keys, values, self.page_table, self.kv_lens, options.scale, window, 0.0,
            splits, rotary=rotary, norms=norms, dependent=True,
        )  # fmt: skip

    @uncompiled
    def _without_kernel(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self.without_triton(module.layer_idx, q, k, v, options)


def _load_decode_kernel(device: torch.device) -> bool:
    """Register our Triton kernel, where there is Triton to run it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    importlib.import_module("groupwise.rollout.native.decode_kernel")
    return True
