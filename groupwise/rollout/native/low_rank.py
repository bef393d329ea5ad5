"""What LoRA adds to linear layers that read the same input, as two products for all of them.

The first is down @ x with the rows of all adapters one below the other, the second up @ that, with
each adapter's columns where its layer's outputs are and zeros elsewhere. Both are copies: they
follow the adapter's weights whenever these have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.compat.peft import LinearWithAdapter


@dataclass(frozen=True)
class LowRank:
    down: Tensor
    """(rank, inputs)"""
    up: Tensor
    """(outputs, rank), times the adapters' scaling."""
    copies: tuple[tuple[Tensor, Tensor, float], ...]
    """A part of these, what it is a copy of, and by how much it is scaled."""

    @torch.no_grad()
    def follow_weights(self) -> None:
        for part, weight, scaling in self.copies:
            torch.mul(weight, scaling, out=part)


def low_rank(linears: Sequence[LinearWithAdapter], *, least_rank: int = 1) -> LowRank | None:
    """Of these layers together; None where none has an adapter.

    `least_rank`: with zeros up to a power of two that is no smaller.
    """
    adapted = [linear for linear in linears if linear.down is not None]
    if not adapted:
        return None
    rank = sum(len(linear.down) for linear in adapted if linear.down is not None)
    if least_rank > 1:
        rank = max(least_rank, 1 << (rank - 1).bit_length())
    first = linears[0].base.weight
    outputs = sum(linear.base.out_features for linear in linears)
    down, up = first.new_zeros(rank, first.shape[1]), first.new_zeros(outputs, rank)
    copies: list[tuple[Tensor, Tensor, float]] = []
    row = column = 0
    for linear in linears:
        end = row + linear.base.out_features
        if linear.down is not None and linear.up is not None:
            columns = slice(column, column := column + len(linear.down))
            copies.append((down[columns], linear.down, 1.0))
            copies.append((up[row:end, columns], linear.up, linear.scaling))
        row = end
    own = LowRank(down, up, tuple(copies))
    own.follow_weights()
    return own
