"""Modules that compute in another way for a while, through what nn.Module does not document.

`nn.Module.__call__` looks up `forward` on the instance first, and an instance's class can be
changed to a subclass that adds no state. Both are undone when the context ends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """While this is open, modules run these functions instead of their own `forward`."""
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def has_own_forward(module: nn.Module) -> bool:
    """Whether this instance runs another `forward` than its class's: wrappers install such."""
    return "forward" in vars(module)


@contextmanager
def replaced_class(modules: Sequence[nn.Module], subclass: type[nn.Module]) -> Iterator[None]:
    """While this is open, modules are instances of `subclass`.

    A class has one `forward`, which torch.compile compiles once for all of its instances; functions
    put on instances would be compiled one by one.
    """
    classes = [type(module) for module in modules]
    for module in modules:
        module.__class__ = subclass
    try:
        yield
    finally:
        for module, own in zip(modules, classes, strict=True):
            module.__class__ = own


def changes_in_place(tensor: Tensor) -> int:
    """How often a tensor was changed in place, as autograd counts it."""
    return tensor._version
