"""Fused qkv and gate_up projections: linear layers that read the same input, as one product.

Their weights are moved next to each other in memory, and each parameter is a view of its part, so
parameters stay what they were for the optimizer and for saving. While answers are sampled, the
first layer of each set computes the outputs of all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.rollout.native.transposed_linear import transposed_linear

FUSIBLE = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers of one module that are called with the same input, in this order."""

Replacement = tuple[nn.Module, str, nn.Module]
"""Parent module, name, and what stands there for a while."""


class FusedLinear(nn.Module):
    """Stands for the first of several linear layers that read the same input: it computes all."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = _fused_parameter([linear.weight for linear in linears])
        has_bias = linears[0].bias is not None
        self.bias = _fused_parameter([linear.bias for linear in linears]) if has_bias else None
        self.sizes = [linear.out_features for linear in linears]
        self.parts = [linear.weight for linear in linears]
        self.linear = transposed_linear if self.weight.device.type == "cpu" else F.linear
        self.others = [FusedOutput() for _ in linears[1:]]

    @property
    def is_valid(self) -> bool:
        """Whether the layers' weights are still views of the fused one."""
        views = self.weight.split(self.sizes)
        return all(p.data_ptr() == v.data_ptr() for p, v in zip(self.parts, views, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.linear(x, self.weight, self.bias).split(self.sizes, -1)
        for other, output in zip(self.others, rest, strict=True):
            other.output = output
        return first


class FusedOutput(nn.Module):
    """Stands for one of the other layers: its output has been computed already."""

    output: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        output, self.output = self.output, None
        assert output is not None
        return output


class FusedProjections:
    """All of a model's projections that can be fused: (parent module, name, replacement)."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.replacements = [each for layer in layers for each in fuse_projections(layer)]

    @property
    def is_valid(self) -> bool:
        fused = (module for _, _, module in self.replacements if isinstance(module, FusedLinear))
        return all(module.is_valid for module in fused)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this is open, the model computes its projections fused."""
        before = [(parent, name, getattr(parent, name)) for parent, name, _ in self.replacements]
        for parent, name, module in self.replacements:
            setattr(parent, name, module)
        try:
            yield
        finally:
            for parent, name, linear in before:
                setattr(parent, name, linear)


def fuse_projections(layer: nn.Module) -> list[Replacement]:
    """(parent, name, replacement) for each linear layer that is computed with others."""
    replacements: list[Replacement] = []
    for parent in layer.modules():
        for names in FUSIBLE:
            linears = [getattr(parent, name, None) for name in names]
            plain = [linear for linear in linears if type(linear) is nn.Linear]
            if len(plain) == len(names) and can_be_fused(plain):
                fused = FusedLinear(plain)
                modules = [fused, *fused.others]
                replacements += [(parent, n, m) for n, m in zip(names, modules, strict=True)]
    return replacements


def can_be_fused(linears: Sequence[nn.Linear]) -> bool:
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if not _can_be_contiguous([linear.weight for linear in linears]):
        return False
    return not biases or (len(biases) == len(linears) and _can_be_contiguous(biases))


def _can_be_contiguous(parameters: Sequence[Tensor]) -> bool:
    """They are already, or each may be moved: one inside another owner's buffer may not.

    DeepSpeed, for one, writes updated weights into a buffer that its parameters are views of.
    """
    return _are_contiguous(parameters) or all(_owns_its_memory(p) for p in parameters)


def _are_contiguous(parameters: Sequence[Tensor]) -> bool:
    """Whether each follows the one before in the same storage."""
    ends = [p.data_ptr() + p.numel() * p.element_size() for p in parameters]
    starts = [p.data_ptr() for p in parameters]
    storages = {p.untyped_storage().data_ptr() for p in parameters}
    each = all(p.is_contiguous() for p in parameters)
    return each and len(storages) == 1 and ends[:-1] == starts[1:]


def _owns_its_memory(parameter: Tensor) -> bool:
    size = parameter.numel() * parameter.element_size()
    return parameter.is_contiguous() and parameter.untyped_storage().nbytes() == size


@torch.no_grad()
def _fused_parameter(parameters: Sequence[Tensor]) -> nn.Parameter:
    """One tensor with all of them; they are views of it, or become that."""
    first = parameters[0].data
    if _are_contiguous(parameters):
        rows = sum(len(p) for p in parameters)
        fused = first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())
        return nn.Parameter(fused, requires_grad=False)
    fused = torch.cat([p.data for p in parameters])
    for parameter, view in zip(parameters, fused.split([len(p) for p in parameters]), strict=True):
        parameter.data = view
    return nn.Parameter(fused, requires_grad=False)
