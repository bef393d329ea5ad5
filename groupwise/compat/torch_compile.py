"""Hints to torch.compile that torch.compiler does not offer."""

import torch
from torch import Tensor


def mark_rows_dynamic(*tensors: Tensor) -> None:
    """Compile for any number of rows of these tensors where that is possible.

    torch.compiler has no such hint, and `dynamic=True` would make all sizes dynamic, the
    vocabulary's too.
    """
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
