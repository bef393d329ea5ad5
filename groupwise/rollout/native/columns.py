"""Linear layers of a decode step on a CPU, computed column by column.

A linear layer multiplies a few rows by the transpose of its weight. Matrix libraries are up to 2.5
times slower at that than at the same product the other way round, weight times the transposed rows,
which reads the weight in the order in which it lies in memory. So while answers are sampled, plain
linear layers compute it that way. It needs no copy of the weights, so tied ones take part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.compat.torch_modules import has_own_forward, replaced_class

FEW, MANY = 4, 64
"""Rows from which on it pays, and up to which."""


class ByColumns(nn.Linear):
    """What a linear layer is meanwhile. A class has one code, which can be compiled for all."""

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


@contextmanager
def by_columns(model: Any) -> Iterator[None]:
    """While this is open; only on a CPU, and only for linear layers that are nothing more."""
    linears = [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and not has_own_forward(module)
    ]
    with replaced_class(linears, ByColumns):
        yield


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What F.linear gives, in whichever way is faster for so many rows."""
    rows = x.numel() // x.shape[-1]
    if not FEW <= rows <= MANY:
        return F.linear(x, weight, bias)
    columns = x.reshape(rows, -1).t().contiguous()
    by_column = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return by_column.t().contiguous().unflatten(0, x.shape[:-1])
