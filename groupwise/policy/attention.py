"""Our attention inside an unmodified transformers model, through its AttentionInterface.

While a model runs under `attending(model, attend)`, each of its attention layers calls `attend`
with the new tokens' queries, keys and values (positions already applied). Outside, the model is as
it was. Sampling attends to slots (rollout/native/cache.py), training to packed rows (pieces.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

NAME = "groupwise"


class Attend(Protocol):
    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, form: "Form") -> Tensor:
        """(R, H, S, D) queries and (R, K, S, D) keys and values to (R, S, H, D).

        `module` is the layer that asks; its `layer_idx` says which one it is.
        """
        ...


@dataclass(frozen=True)
class Form:
    """How a layer wants its scores."""

    scale: float
    window: int | None
    softcap: float | None


class Unservable(Exception):
    """The model asks its attention for something that ours does not do."""


_current: list[Attend] = []


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
        raise Unservable("its attention has sinks")
    if extra.get("dropout"):
        raise Unservable("it drops attention at random")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if sliding_window is None:
        sliding_window = getattr(module, "sliding_window", None)
    form = Form(scale, sliding_window or None, softcap or None)
    return _current[-1](module, query, key, value, form), None


AttentionInterface.register(NAME, _dispatch)


@contextmanager
def attending(model: Any, attend: Attend) -> Iterator[None]:
    """Route the model's attention to `attend`; the model's own choice comes back afterwards."""
    configs = [model.config, *_text_configs(model)]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = NAME
    _current.append(attend)
    try:
        yield
    finally:
        _current.pop()
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def why_fixed(model: Any) -> str | None:
    """Why a model's attention cannot be routed at all; None when it can be tried."""
    if getattr(model, "_supports_attention_backend", False):
        return None
    return "its attention cannot be replaced (no transformers AttentionInterface)"


def attended_by() -> Attend | None:
    """What the innermost open `attending` routes to."""
    return _current[-1] if _current else None


def _text_configs(model: Any) -> list[Any]:
    text = model.config.get_text_config()
    return [] if text is model.config else [text]


def causal(q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
    """One prompt's attention over itself: (1, H, S, D) to (1, S, H, D)."""
    length = q.shape[2]
    if form.softcap is None and (form.window is None or length <= form.window):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=form.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2)
    places = torch.arange(length, device=q.device)
    visible = places[None, :] <= places[:, None]
    if form.window is not None:
        visible &= places[:, None] - places[None, :] < form.window
    return grouped(q, k, v, visible, form)


def grouped(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, form: Form) -> Tensor:
    """Masked attention where several query heads share a key head, without repeating keys.

    q (R, H, S, D), k and v (R, K, L, D), visible broadcastable to (R, 1, S, L); gives (R, S, H, D).
    """
    rows, heads, length, size = q.shape
    shared = k.shape[1]
    share = heads // shared
    visible = visible.expand(rows, 1, length, k.shape[2]) if visible.ndim == 4 else visible
    # Query heads of one key head stand in line as further queries of it.
    q = q.reshape(rows, shared, share * length, size)
    visible = visible.repeat(*(1,) * (visible.ndim - 2), share, 1)
    if form.softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=form.scale)
    else:
        scores = torch.tanh(q @ k.transpose(-1, -2) * (form.scale / form.softcap)) * form.softcap
        out = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
    return out.reshape(rows, heads, length, size).transpose(1, 2)
