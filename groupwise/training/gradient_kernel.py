"""Adding up gradients of weights in half precision, in Triton.

torch adds a bf16 tensor to an fp32 one at half of the speed that memory allows, and this happens to
every weight once a micro-batch.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _add(total_ptr, part_ptr, size, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < size
    total = tl.load(total_ptr + n, mask=inside)
    part = tl.load(part_ptr + n, mask=inside)
    tl.store(total_ptr + n, total + part.to(total.dtype), mask=inside)


def add_into(total: Tensor, part: Tensor) -> None:
    """total += part, of tensors that lie in memory in the same order without gaps."""
    kernel: Any = _add  # called as kernel[grid](...), which its type does not know
    kernel[triton.cdiv(total.numel(), BLOCK),](total, part, total.numel(), BLOCK=BLOCK, num_warps=8)
