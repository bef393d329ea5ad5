"""What remote engines were last given: one copy in CPU memory, and how it differs from the last.

A server that has the version before gets the difference, where that is small; every other one, such
as one that was started again, gets the whole.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from groupwise.remote.sparse_weights import (
    MODULUS,
    Change,
    bits,
    change_hash,
    encode_difference,
    find_change,
    tensor_hash,
)

MAX_SHARE = 0.5
"""Of the whole: a larger difference is not worth its work."""


class PublishedWeights:
    """`update` it in the thread that has the weights; then `weights` and `difference` are sent.

    `dtype`: that of the servers, where it is not the weights' own.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype
        self.version: int | None = None
        self.weights: dict[str, Tensor] = {}
        self.base: int | None = None
        """The version that `difference` is from."""
        self.difference: bytes | None = None
        self._hashes: dict[str, int] = {}

    @property
    def checksum(self) -> str:
        """What a receiver of `difference` must hold in the end."""
        return str(self._total())

    @torch.no_grad()
    def update(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Reads each tensor once; between two of them only the copy is held."""
        limit = MAX_SHARE * sum(weight.nbytes for weight in self.weights.values())
        changes: dict[str, Change] | None = {} if self.version is not None else None
        names, before = set[str](), dict(self._hashes)
        for name, given in weights:
            names.add(name)
            new = given.detach().to("cpu", self.dtype or given.dtype)
            held = self.weights.get(name)
            if held is None or (held.dtype, held.shape) != (new.dtype, new.shape):
                changes = None
                self.weights[name] = new.clone(memory_format=torch.contiguous_format)
                self._hashes.pop(name, None)
                continue
            if changes is not None:
                changes[name] = change = find_change(held, new)
                limit -= change.nbytes
                before.setdefault(name, tensor_hash(name, held))
                by = change_hash(name, change, bits(held).numpy()[change.indices])
                self._hashes[name] = before[name] + by
                changes = changes if limit >= 0 else None
            else:
                self._hashes.pop(name, None)
            held.copy_(new)
        if names != self.weights.keys():
            changes = None
            self.weights = {name: self.weights[name] for name in self.weights if name in names}
        self.base, self.difference = self.version, None
        self.version = version
        if changes is not None and self.base is not None:
            base_hash = sum(before[name] for name in names) % MODULUS
            self.difference = encode_difference(changes, self.base, base_hash, self._total())

    def _total(self) -> int:
        return sum(self._hashes[name] for name in self.weights) % MODULUS
