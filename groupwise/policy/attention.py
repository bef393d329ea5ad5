"""Our attention functions inside an unmodified transformers model, through its AttentionInterface.

While a model runs under `use_attention(model, function)`, each of its attention layers calls
`function` with the new tokens' queries, keys and values (rotary positions already applied).
Outside, the model is as it was. Sampling attends to KV pages (rollout/native/decode_attention.py),
training to packed rows (packed_attention.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from groupwise.compat.transformers import has_attention_interface, routed, routed_attention

NAME = "groupwise"


class AttentionFunction(Protocol):
    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: "AttentionOptions"
    ) -> Tensor:
        """(R, H, S, D) queries and (R, K, S, D) keys and values to (R, S, H, D).

        `module` is the attention layer; its `layer_idx` says which one it is.
        """
        ...


@dataclass(frozen=True)
class AttentionOptions:
    """What a layer asks of its attention scores. A sliding window counts the token itself."""

    scale: float
    sliding_window: int | None
    softcap: float | None


class UnsupportedAttention(Exception):
    """The model asks its attention for something that ours does not do."""


def _dispatch(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    if extra.get("s_aux") is not None:
        raise UnsupportedAttention("its attention has sinks")
    if extra.get("dropout"):
        raise UnsupportedAttention("it uses attention dropout")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if sliding_window is None:
        sliding_window = getattr(module, "sliding_window", None)
    options = AttentionOptions(scale, sliding_window or None, softcap or None)
    return routed(module.config)(module, query, key, value, options), None


AttentionInterface.register(NAME, _dispatch)


@contextmanager
def use_attention(model: Any, function: AttentionFunction) -> Iterator[None]:
    """Route the model's attention to `function`; the model's own comes back afterwards."""
    with routed_attention(model, NAME, function):
        yield


def current_attention(model: Any) -> AttentionFunction | None:
    """What the innermost open `use_attention` routes the model's attention to."""
    return routed(model.config)


def attention_interface_problem(model: Any) -> str | None:
    """Why a model's attention cannot be replaced at all; None when it can be tried."""
    if has_attention_interface(model):
        return None
    return "its attention cannot be replaced (no transformers AttentionInterface)"


def causal_attention(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """Prompts' attention, each over itself: (R, H, S, D) to (R, S, H, D)."""
    length, window = q.shape[2], options.sliding_window
    if options.softcap is None and (window is None or length <= window):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=options.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2)
    positions = torch.arange(length, device=q.device)
    mask = causal_mask(positions, length, window)
    return grouped_query_attention(q, k, v, mask, options)


def causal_mask(positions: Tensor, keys: int, window: int | None) -> Tensor:
    """(..., Q, keys): queries at (..., Q) positions see all keys before them, and themselves."""
    distance = positions[..., None] - torch.arange(keys, device=positions.device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def grouped_query_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: AttentionOptions
) -> Tensor:
    """Masked attention where several query heads share a key head, without repeating keys.

    q (R, H, S, D), k and v (R, K, L, D), mask (true: visible) broadcastable to (R, 1, S, L); gives
    (R, S, H, D).
    """
    rows, heads, length, size = q.shape
    kv_heads = k.shape[1]
    queries_per_kv = heads // kv_heads
    mask = mask.expand(rows, 1, length, k.shape[2]) if mask.ndim == 4 else mask
    # The query heads of one key head become further queries of it.
    q = q.reshape(rows, kv_heads, queries_per_kv * length, size)
    mask = mask.repeat(*(1,) * (mask.ndim - 2), queries_per_kv, 1)
    if options.softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=options.scale)
    else:
        scores = q @ k.transpose(-1, -2) * (options.scale / options.softcap)
        scores = torch.tanh(scores) * options.softcap
        out = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
    return out.reshape(rows, heads, length, size).transpose(1, 2)
