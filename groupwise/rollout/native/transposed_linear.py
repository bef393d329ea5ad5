"""Linear layers of a decode step on a CPU, computed as weight @ x.T instead of x @ weight.T.

With few rows, matrix libraries are up to 2.5 times faster at that product, which reads the weight
in the order in which it lies in memory. So while answers are sampled, plain linear layers compute
it that way. It needs no copy of the weights, so tied ones take part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.compat.torch_modules import has_own_forward, replaced_class

MIN_ROWS, MAX_ROWS = 4, 64
"""Numbers of rows for which it is faster."""


class TransposedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return transposed_linear(input, self.weight, self.bias)


@contextmanager
def use_transposed_linear(model: Any) -> Iterator[None]:
    """While this is open, plain linear layers on a CPU are computed so; no subclass of them is."""
    linears = [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and not has_own_forward(module)
    ]
    with replaced_class(linears, TransposedLinear):
        yield


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What F.linear gives, by whichever product is faster for so many rows.

    Transposed in memory, which spares the next such layer from doing it, and gates do not care.
    """
    rows = x.numel() // x.shape[-1]
    if not MIN_ROWS <= rows <= MAX_ROWS:
        return F.linear(x, weight, bias)
    x_t = x.reshape(rows, -1).t().contiguous()
    out_t = weight @ x_t if bias is None else torch.addmm(bias[:, None], weight, x_t)
    return out_t.t().unflatten(0, x.shape[:-1])
