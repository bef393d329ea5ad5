"""Linear layers that read the same input, computed as one product.

Query, key and value; gate and up: their weights are moved next to each other in memory, and each
is a view of its part. Parameters stay what they were for the optimizer and for saving; while
answers are sampled, the first of each set computes all of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.rollout.native.columns import product

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers of one module that are called with the same input."""


class First(nn.Module):
    """The first of several linear layers that read the same input: it computes all of them."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = _side_by_side([linear.weight for linear in linears])
        has_bias = linears[0].bias is not None
        self.bias = _side_by_side([linear.bias for linear in linears]) if has_bias else None
        self.sizes = [linear.out_features for linear in linears]
        self.parts = [linear.weight for linear in linears]
        self.product = product if self.weight.device.type == "cpu" else F.linear
        self.others = [Next() for _ in linears[1:]]

    @property
    def holds(self) -> bool:
        """Whether the layers' weights are still views of the joint one."""
        starts = self.weight.split(self.sizes)
        return all(p.data_ptr() == s.data_ptr() for p, s in zip(self.parts, starts, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        mine, *rest = self.product(x, self.weight, self.bias).split(self.sizes, -1)
        for other, part in zip(self.others, rest, strict=True):
            other.part = part
        return mine


class Next(nn.Module):
    """One of the others: its part is there already."""

    part: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        part, self.part = self.part, None
        assert part is not None
        return part


class Joined:
    """All of a model's projections that can be computed together."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.places = [place for layer in layers for place in join_projections(layer)]

    @property
    def holds(self) -> bool:
        return all(new.holds for _, _, new in self.places if isinstance(new, First))

    @contextmanager
    def instead(self) -> Iterator[None]:
        """While this is open, they are."""
        before = [(parent, name, getattr(parent, name)) for parent, name, _ in self.places]
        for parent, name, new in self.places:
            setattr(parent, name, new)
        try:
            yield
        finally:
            for parent, name, linear in before:
                setattr(parent, name, linear)


def join_projections(layer: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, replacement) for each linear layer that is computed with others."""
    found: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in layer.modules():
        for names in TOGETHER:
            linears = [getattr(parent, name, None) for name in names]
            plain = [linear for linear in linears if type(linear) is nn.Linear]
            if len(plain) == len(names) and _can_be_one(plain):
                first = First(plain)
                found += [
                    (parent, n, m) for n, m in zip(names, [first, *first.others], strict=True)
                ]
    return found


def _can_be_one(linears: Sequence[nn.Linear]) -> bool:
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if not can_lie_together([linear.weight for linear in linears]):
        return False
    return not biases or (len(biases) == len(linears) and can_lie_together(biases))


def can_lie_together(parameters: Sequence[Tensor]) -> bool:
    """They do already, or each may be moved: one inside somebody else's buffer may not.

    DeepSpeed, for one, writes updated weights into a buffer that its parameters are views of.
    """
    return _lie_together(parameters) or all(_owns_its_memory(p) for p in parameters)


def _lie_together(parameters: Sequence[Tensor]) -> bool:
    ends = [p.data_ptr() + p.numel() * p.element_size() for p in parameters]
    starts = [p.data_ptr() for p in parameters]
    memory = {p.untyped_storage().data_ptr() for p in parameters}
    whole = all(p.is_contiguous() for p in parameters)
    return whole and len(memory) == 1 and ends[:-1] == starts[1:]


def _owns_its_memory(parameter: Tensor) -> bool:
    size = parameter.numel() * parameter.element_size()
    return parameter.is_contiguous() and parameter.untyped_storage().nbytes() == size


@torch.no_grad()
def _side_by_side(parameters: Sequence[Tensor]) -> nn.Parameter:
    """One tensor with all of them; they are views of it, or become that."""
    first = parameters[0].data
    if _lie_together(parameters):
        rows = sum(len(p) for p in parameters)
        joint = first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())
        return nn.Parameter(joint, requires_grad=False)
    joint = torch.cat([p.data for p in parameters])
    for parameter, view in zip(parameters, joint.split([len(p) for p in parameters]), strict=True):
        parameter.data = view
    return nn.Parameter(joint, requires_grad=False)
