"""Hints to torch.compile that torch.compiler does not offer."""

from typing import Any

import torch
from torch import Tensor

NO_THRESHOLDS = "triton.mix_order_reduction_non_strict_mode"


def mark_rows_dynamic(*tensors: Tensor) -> None:
    """Compile for any number of rows of these tensors where that is possible.

    torch.compiler has no such hint, and `dynamic=True` would make all sizes dynamic, the
    vocabulary's too.
    """
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


def any_number_of_rows() -> dict[str, Any]:
    """Options with which a layer's backward pass is compiled once, whatever it is given.

    On a GPU the gradient of a norm's weight is fused with that of its input where there are more
    rows than some thresholds (4096, and others by the hidden size). A batch on the other side of
    one, such as a step's last and smallest, is a compilation of its own, seconds in mid-run.
    """
    from torch import _inductor  # which takes a second to load

    return {NO_THRESHOLDS: True} if NO_THRESHOLDS in _inductor.list_options() else {}
