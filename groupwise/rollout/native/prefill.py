"""Attention of the prefill: packed prompts, whose keys and values are kept for the KV cache."""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions
from groupwise.policy.packed_attention import PackedAttention


class Prefill:
    """Prompts of these lengths in one packed row; `kv` is filled layer by layer as the model runs.

    A layer's keys and values are (tokens, heads, head size); prompt i has tokens `cu_seqlens[i]` to
    `cu_seqlens[i + 1]`.
    """

    def __init__(self, seqlens: list[int], device: torch.device) -> None:
        self.cu_seqlens = [0, *accumulate(seqlens)]
        self.attention = PackedAttention([[seqlen] for seqlen in seqlens], device)
        self.kv: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.kv[module.layer_idx] = (k[0].transpose(0, 1), v[0].transpose(0, 1))
        return self.attention(module, q, k, v, options)

    def seqlen(self, prompt: int) -> int:
        return self.cu_seqlens[prompt + 1] - self.cu_seqlens[prompt]
