"""Attention over packed prompts and answers: each answer sees its prompt and itself.

A row is one prompt with its answers after the other: `groups` says how long each of them is. Every
stretch of queries meets just the keys that it may see, so nothing is computed to be masked away and
nothing is padded. On CUDA in half precision all stretches go through FlashAttention in one call;
elsewhere they take turns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from groupwise.batch import Rows
from groupwise.policy.attention import Form, attended_by, attending, causal, grouped
from groupwise.policy.compiled import run_plainly

Groups = Sequence[Sequence[int]]
"""For each group the length of its prompt, then of each of its answers."""


@contextmanager
def attending_rows(model: Any, rows: Rows) -> Iterator[None]:
    """The attention that `rows` need, while this is open; backward included."""
    now = attended_by()
    if rows.groups is None or (isinstance(now, Pieces) and now.groups is rows.groups):
        yield
        return
    with attending(model, Pieces(rows.groups, rows.tokens_RS.device)):
        yield


class Pieces:
    def __init__(self, groups: Groups, device: torch.device) -> None:
        self.groups = groups
        self.sizes = list(chain.from_iterable(groups))
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        self.packed = None if device.type != "cuda" else Packed(groups, device)

    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        """(1, H, N, D) queries and (1, K, N, D) keys and values to (1, N, H, D)."""
        if self.packed is not None and flash_can(q, form):
            return self.packed(q, k, v, form)
        return self._in_turn(q, k, v, form)

    @run_plainly
    def _in_turn(self, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        pieces = zip(*(x.split(self.sizes, dim=2) for x in (q, k, v)), strict=True)
        found: list[Tensor] = []
        for sizes in self.groups:
            q_own, k_prompt, v_prompt = next(pieces)
            found.append(causal(q_own, k_prompt, v_prompt, form))
            for size in sizes[1:]:
                q_own, k_own, v_own = next(pieces)
                if size:
                    keys = torch.cat([k_prompt, k_own], dim=2)
                    values = torch.cat([v_prompt, v_own], dim=2)
                    seen = self._seen(size, keys.shape[2], form.window, q.device)
                    found.append(grouped(q_own, keys, values, seen, form))
        return torch.cat(found, dim=1)

    def _seen(self, size: int, total: int, window: int | None, device: torch.device) -> Tensor:
        """(size, total): the last `size` of `total` tokens see all before them, and themselves."""
        key = (size, total, window)
        if key not in self._masks:
            places = torch.arange(total, device=device)
            distance = places[total - size :, None] - places[None, :]
            seen = distance >= 0
            self._masks[key] = seen if window is None else seen & (distance < window)
        return self._masks[key]


class Packed:
    """All stretches in the form that FlashAttention takes: where queries and their keys begin."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        queries, keys, index = [], [], []
        start = 0
        for prompt, *answers in groups:
            places = torch.arange(start, start + prompt)
            queries.append(prompt)
            keys.append(prompt)
            index.append(places)
            start += prompt
            for size in filter(None, answers):
                queries.append(size)
                keys.append(prompt + size)
                index += [places, torch.arange(start, start + size)]
                start += size
        self.index = torch.cat(index).to(device)
        bounds = ([0, *accumulate(lengths)] for lengths in (queries, keys))
        self.starts_q, self.starts_k = (
            torch.tensor(b, dtype=torch.int32, device=device) for b in bounds
        )
        self.longest = torch.tensor([max(queries), max(keys)])
        """On the CPU, and a tensor: as numbers they would be constants of compiled code."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        starts = self.starts_q, self.starts_k
        window = form.window or 0
        out, _ = attend_pieces(q, k, v, self.index, *starts, self.longest, form.scale, window)
        return out[None]


def flash_can(q: Tensor, form: Form) -> bool:
    """bf16 or fp16 on CUDA, head sizes that the kernel has, no soft cap."""
    half = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    return half and form.softcap is None and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


@torch.library.custom_op("groupwise::attend_pieces", mutates_args=())
def attend_pieces(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    longest: Tensor,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor]:
    """(N, H, D) queries, (N, K, D) keys and values to (N, H, D), and the log of each softmax's sum.

    Stretch i of the queries sees its stretch of `index`, up to the place that its end lines up
    with. Prompts stand in `index` once for each of their answers; they are not kept that way for
    the backward pass, which gathers them again.
    """
    out, log_sums, *_ = torch.ops.aten._flash_attention_forward(
        q.contiguous(), k[index], v[index], starts_q, starts_k, *longest.tolist(),
        0.0, window == 0, False, scale=scale, **_edges(window),
    )  # fmt: skip
    return out, log_sums


@attend_pieces.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    count, heads, size = q.shape
    return q.new_empty(count, heads, size), q.new_empty(heads, count, dtype=torch.float32)


@torch.library.custom_op("groupwise::attend_pieces_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    index: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    longest: Tensor,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=torch.uint64, device=q.device)  # dropout's random state
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        grad.contiguous(), q.contiguous(), k[index], v[index], out, log_sums,
        starts_q, starts_k, *longest.tolist(),
        0.0, window == 0, nothing, nothing, scale=scale, **_edges(window),
    )  # fmt: skip

    def added_up(gathered: Tensor, like: Tensor) -> Tensor:
        """A prompt's gradient is the sum over all who saw it, in float32."""
        total = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        return total.index_add_(0, index, gathered.float()).to(like.dtype)

    return dq, added_up(dk, k), added_up(dv, v)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    whole = torch.contiguous_format
    dq, dk, dv = (torch.empty_like(x, memory_format=whole) for x in (q, k, v))
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, *where, out, log_sums = ctx.saved_tensors
    given = _backward(grad, q, k, v, out, log_sums, *where, ctx.scale, ctx.window)
    return *given, *(None,) * 6


attend_pieces.register_autograd(_gradients, setup_context=_keep)


def _edges(window: int) -> dict[str, int]:
    """The window counts the token itself. A right edge of 0 is causal, without the causal flag."""
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}
