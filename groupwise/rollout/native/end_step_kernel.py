"""The end of a decode step as one Triton kernel: `cuda_graphs.end_step`."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _end_step(
    tokens_ptr, logprobs_ptr, last_token_ptr, kv_len_ptr, position_ptr, drawn_ptr, step_ptr,
    rows, step_stride, kind_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    step = tl.load(step_ptr)
    for first in range(0, rows, BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = n < rows
        token = tl.load(tokens_ptr + n, mask=inside)
        logprob = tl.load(logprobs_ptr + n, mask=inside)
        drawn = drawn_ptr + step * step_stride + n
        tl.store(drawn, token.to(tl.float64), mask=inside)
        tl.store(drawn + kind_stride, logprob.to(tl.float64), mask=inside)
        tl.store(last_token_ptr + n, token, mask=inside)
        tl.store(kv_len_ptr + n, tl.load(kv_len_ptr + n, mask=inside) + 1, mask=inside)
        tl.store(position_ptr + n, tl.load(position_ptr + n, mask=inside) + 1, mask=inside)
    tl.debug_barrier()  # all threads have read the step
    tl.store(step_ptr, step + 1)


def end_step(
    tokens_n: Tensor,
    logprobs_n: Tensor,
    last_token_n: Tensor,
    kv_len_n: Tensor,
    position_n: Tensor,
    drawn_K2n: Tensor,
    step: Tensor,
) -> None:
    tensors = tokens_n, logprobs_n, last_token_n, kv_len_n, position_n
    assert all(x.is_contiguous() for x in tensors) and drawn_K2n.stride(2) == 1
    kernel: Any = _end_step  # called as kernel[grid](...), which its type does not know
    kernel[1,](
        *tensors, drawn_K2n, step, len(tokens_n), *drawn_K2n.stride()[:2], BLOCK=BLOCK, num_warps=4
    )
