"""Decode attention over KV pages on a CPU, by our C kernel.

It takes the place of page_attention.py where its sizes fit. It computes in fp32.
"""

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions
from groupwise.rollout.cpu_kernels import (
    MAX_GROUP,
    MAX_HEAD_SIZE,
    MAX_PAGE,
    compiled_kernels,
    decode_attention,
)
from groupwise.rollout.native.kv_cache import PagedKVCache
from groupwise.rollout.native.llama_layer import HeadNorms


class CpuAttention:
    def __init__(self, cache: PagedKVCache) -> None:
        self.cache = cache
        self.table, self.kv_lens = torch.zeros(0), torch.zeros(0)

    @staticmethod
    def takes(cache: PagedKVCache) -> bool:
        """Whether the kernel can attend to this cache."""
        shape, here = cache.shape, cache.device.type == "cpu"
        fits = cache.page <= MAX_PAGE and shape.head_size in range(2, MAX_HEAD_SIZE + 1, 2)
        fits = (
            fits and shape.query_heads <= MAX_GROUP * shape.heads and shape.dtype == torch.float32
        )
        return here and fits and compiled_kernels() is not None

    def begin_step(self, table_nw: np.ndarray, counts_n: np.ndarray, kv_lens_n: np.ndarray) -> None:
        self.table = torch.from_numpy(self.cache.offsets[table_nw])
        self.kv_lens = torch.from_numpy(np.ascontiguousarray(kv_lens_n))

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: AttentionOptions,
        rotary: tuple[Tensor, Tensor] | None = None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        if norms is not None:
            q, k = norms(q, k)
        keys, values = self.cache.layers[layer]
        out = decode_attention(
            *(q.float(), k.float(), v.float(), keys, values, self.table, self.kv_lens),
            scale=options.scale,
            window=options.sliding_window or 0,
            softcap=options.softcap or 0.0,
            rotary=rotary and (rotary[0].float(), rotary[1].float()),
        )
        return out.to(q.dtype)
