"""Two ways to compute one thing: equal, and with equal gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor


def assert_same_with_gradients(
    ours: Tensor, theirs: Tensor, inputs: Sequence[Tensor], atol: float
) -> None:
    assert torch.allclose(ours, theirs, atol=atol)
    weights = torch.randn_like(theirs)
    for own, other in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(own, other, atol=atol)
