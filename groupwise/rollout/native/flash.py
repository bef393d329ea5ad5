"""FlashAttention over packed prompts and over slots, through torch's own kernel on CUDA."""

import itertools

import torch
from torch import Tensor

from groupwise.rollout.native.attention import Form


def usable(q: Tensor, form: Form) -> bool:
    """bf16 or fp16 on CUDA, head sizes that the kernel has, no soft cap."""
    half = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    return half and form.softcap is None and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def prompts(q: Tensor, k: Tensor, v: Tensor, bounds: list[int], form: Form) -> Tensor:
    """Causal attention within each packed prompt: (1, H, S, D) to (1, S, H, D)."""
    starts = torch.tensor(bounds, dtype=torch.int32, device=q.device)
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
    return _kernel(q, k, v, starts, starts, longest, longest, form, causal=True)[None]


def slots(q: Tensor, keys: Tensor, values: Tensor, fill_n: Tensor, form: Form) -> Tensor:
    """One new token per active slot, already stored: (n, H, 1, D) to (n, 1, H, D)."""
    count, length = len(q), keys.shape[1]
    queries = torch.arange(count + 1, dtype=torch.int32, device=q.device)
    out = _kernel(
        q[:, :, 0].contiguous(),
        keys[:count].flatten(0, 1),
        values[:count].flatten(0, 1),
        queries,
        queries * length,
        1,
        length,
        form,
        causal=False,
        used=(fill_n + 1).to(torch.int32),
    )
    return out[:, None]


def _kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    longest_q: int,
    longest_k: int,
    form: Form,
    *,
    causal: bool,
    used: Tensor | None = None,
) -> Tensor:
    """(T, H, D) and (T', K, D), packed; the window counts the token itself."""
    window = {}
    if form.window is not None and form.window <= longest_k:
        window = {"window_size_left": form.window - 1, "window_size_right": 0}
        causal = False  # the kernel takes one or the other; a right edge of 0 is causal
    return torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        starts_q,
        starts_k,
        longest_q,
        longest_k,
        0.0,
        causal,
        False,
        scale=form.scale,
        seqused_k=used,
        **window,
    )[0]
