"""Who sees whom: a batch's rows as an attention mask, in the form that a model's attention takes.

On a shared-prefix row a token sees what comes before it in the prompt and in its own answer. That
is a dense mask for SDPA and eager attention, and a block mask for flex attention on CUDA, which
skips the blocks that nobody sees instead of computing and discarding them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

from groupwise.batch import Rows

FLEX = "groupwise_flex"
Mask = Tensor | BlockMask | dict[str, Any]


def attention_mask(model: Any, rows: Rows) -> Mask:
    """The mask for `rows`, with sliding windows cut out by position where the model has them."""
    if not rows.shared:
        return rows.segments_RS >= 0  # padded rows: the model makes its own mask of this
    config = model.config.get_text_config()
    make = _block_mask if config._attn_implementation == FLEX else _dense_mask
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return make(model, rows, None)
    near = make(model, rows, window)
    if getattr(config, "layer_types", None) is None:
        return near
    return {"full_attention": make(model, rows, None), "sliding_attention": near}


def visible(rows: Rows, window: int | None) -> Tensor:
    """(R, 1, S, S): queries down, keys across."""
    segments, positions = rows.segments_RS, rows.positions_RS
    query, key = segments[:, :, None], segments[:, None, :]
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    seen = causal & ((key == 0) | (key == query)) & (key >= 0)
    if window is not None:
        seen &= positions[:, :, None] - positions[:, None, :] < window
    # Padding sees itself, or its softmax would be over nothing.
    return (seen | torch.eye(length, dtype=torch.bool, device=segments.device))[:, None]


def _dense_mask(model: Any, rows: Rows, window: int | None) -> Tensor:
    seen = visible(rows, window)
    if model.config.get_text_config()._attn_implementation == "sdpa":
        return seen
    hidden = torch.finfo(model.dtype).min  # eager attention adds a float mask to its scores
    return torch.zeros(seen.shape, dtype=model.dtype, device=seen.device).masked_fill_(
        ~seen, hidden
    )


def _block_mask(model: Any, rows: Rows, window: int | None) -> BlockMask:
    segments, positions = rows.segments_RS, rows.positions_RS
    count, length = segments.shape

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own, other = segments[row, query], segments[row, key]
        allowed = (query >= key) & ((other == 0) | (other == own)) & (other >= 0)
        if window is not None:
            allowed = allowed & (positions[row, query] - positions[row, key] < window)
        return allowed | (query == key)

    return create_block_mask(seen, count, None, length, length, device=str(segments.device))


@contextmanager
def flex_attending(model: Any, on: bool) -> Iterator[None]:
    """While this is open, the model's attention is flex attention (if `on`); backward included."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if on:
        config._attn_implementation = FLEX
    try:
        yield
    finally:
        config._attn_implementation = before


@cache
def _compiled() -> Any:
    """One kernel for all shapes: batches differ in rows and length at every step."""
    return torch.compile(flex_attention, dynamic=True)


def _flex(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    kernel = _compiled() if query.is_cuda else flex_attention
    shared = query.shape[1] != key.shape[1]
    out = kernel(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=shared)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(FLEX, _flex)
