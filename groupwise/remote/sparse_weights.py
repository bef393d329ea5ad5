"""The exact difference between two versions of weights, in few bytes.

One update changes one to three percent of 16-bit weights. Those travel as a safetensors file with
two rows for each tensor: the gaps between the indices that changed, and the new bits. A gap is a
byte; 255 means "skip 255 values, none of them changed". Bits are compared as 16-bit integers, so
nothing is rounded, whatever the type.

    hash(weights) = sum of bits * factor(name, index), modulo 2**64

is linear in the bits, so the hash of the result follows from that of the base and the change alone:
the receiver knows before it changes a weight whether it has the right base and an undamaged file,
and tells the sender the hash of what it holds afterwards. It is no protection from an attacker;
whoever may send weights may send any.

Imports nothing of groupwise: it runs in vLLM's processes too.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

BLOCK = 1 << 18
"""Indices that share a table of factors; each block has a factor of its own besides."""
SKIP = 255
MODULUS = 1 << 64
GAPS, VALUES = ".gaps", ".values"

Weights = Mapping[str, Tensor]


class DifferenceRefused(Exception):
    """It is damaged, or meant for other weights; the message says which."""


@dataclass(frozen=True)
class Change:
    """The indices of one tensor that changed, in order, and their new bits."""

    indices: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """About as many as the change has in a file."""
        return 3 * len(self.indices)


def bits(weight: Tensor) -> Tensor:
    """A tensor's memory as one row of 16-bit integers; a copy where its memory has gaps."""
    return weight.detach().contiguous().view(-1).view(torch.int16)


def find_change(held: Tensor, new: Tensor) -> Change:
    """What turns `held` into `new`: both in CPU memory, of one type and shape."""
    ours, theirs = bits(held).numpy(), bits(new).numpy()
    indices = np.flatnonzero(ours != theirs)
    return Change(indices, theirs[indices])


def encode_difference(
    changes: Mapping[str, Change], base: int, base_hash: int, result_hash: int
) -> bytes:
    rows: dict[str, Tensor] = {}
    for name, change in changes.items():
        if len(change.indices):
            rows[name + GAPS] = torch.from_numpy(to_gaps(change.indices))
            rows[name + VALUES] = torch.from_numpy(change.values)
    metadata = {"base": str(base), "base_hash": str(base_hash), "hash": str(result_hash)}
    return save(rows, metadata)


def to_gaps(indices: np.ndarray) -> np.ndarray:
    """to_gaps([0, 3, 900]) == [0, 2, 255, 255, 255, 131]"""
    gaps = np.diff(indices, prepend=-1) - 1
    skips = gaps // SKIP
    ends = np.cumsum(skips + 1) - 1
    row = np.full(int(ends[-1]) + 1 if len(ends) else 0, SKIP, dtype=np.uint8)
    row[ends] = gaps % SKIP
    return row


def to_indices(gaps: np.ndarray) -> np.ndarray:
    changed = gaps != SKIP
    return (np.cumsum(gaps.astype(np.int64) + changed) - 1)[changed]


class WeightsDifference:
    """WeightsDifference(body, weights) is checked; iterate over it to apply it, tensor by tensor.

    Every tensor comes, also those that stay as they are. `checksum` is of what is held then.
    """

    def __init__(self, body: bytes, weights: Weights) -> None:
        self.weights = weights
        metadata, self._changes = _decode(body, weights)
        result = weights_hash(weights)
        if metadata["base_hash"] != str(result):
            raise DifferenceRefused("its weights are not the base of this difference")
        for name, change in self._changes.items():
            old = bits(weights[name])[torch.from_numpy(change.indices).to(weights[name].device)]
            result += change_hash(name, change, old.cpu().numpy())
        if metadata["hash"] != str(result % MODULUS):
            raise DifferenceRefused("the difference was damaged on the way")

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights.items():
            if name in self._changes:
                apply_change(weight, self._changes.pop(name))
            yield name, weight

    def checksum(self) -> str:
        return str(weights_hash(self.weights))


@torch.no_grad()
def apply_change(weight: Tensor, change: Change) -> None:
    row = bits(weight)
    indices = torch.from_numpy(change.indices).to(row.device)
    row[indices] = torch.from_numpy(change.values).to(row.device)
    if row.data_ptr() != weight.data_ptr():
        weight.copy_(row.view(weight.dtype).view(weight.shape))


def _decode(body: bytes, weights: Weights) -> tuple[dict[str, str], dict[str, Change]]:
    try:
        rows = load(body)
        size = int.from_bytes(body[:8], "little")
        metadata: dict[str, str] = json.loads(body[8 : 8 + size])["__metadata__"]
        if not {"base_hash", "hash"} <= metadata.keys():
            raise ValueError("its hashes are missing")
        names = {name.removesuffix(GAPS) for name in rows if name.endswith(GAPS)}
        if not names <= weights.keys() or len(rows) != 2 * len(names):
            raise ValueError("it has other names than the weights")
        changes = {
            name: _checked(rows[name + GAPS], rows[name + VALUES], weights[name]) for name in names
        }
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise DifferenceRefused(f"it is not a difference of these weights: {reason}") from None
    return metadata, changes


def _checked(gaps: Tensor, values: Tensor, weight: Tensor) -> Change:
    if gaps.dtype != torch.uint8 or values.dtype != torch.int16 or gaps.ndim != 1:
        raise ValueError("the rows of a tensor have the wrong dtype")
    indices = to_indices(gaps.numpy())
    size = weight.numel() * weight.element_size() // 2
    if values.shape != (len(indices),) or (len(indices) and indices[-1] >= size):
        raise ValueError("indices outside the tensor, or not as many as values")
    return Change(indices, values.numpy())


def weights_hash(weights: Weights) -> int:
    return sum(tensor_hash(name, weight) for name, weight in weights.items()) % MODULUS


def tensor_hash(name: str, weight: Tensor) -> int:
    """A tensor's part of the sum, computed where the tensor is."""
    row, factors = bits(weight), _factors(str(weight.device))
    total = torch.zeros((), dtype=torch.int64, device=row.device)
    for number, at in enumerate(range(0, len(row), BLOCK)):
        block = row[at : at + BLOCK].long()
        total += (block * factors[: len(block)]).sum() * _signed(_block_factor(number))
    return int(total) * _name_factor(name) % MODULUS


def change_hash(name: str, change: Change, old: np.ndarray) -> int:
    """What a change adds to the sum. `old`: the bits that it replaces."""
    factors = _factors("cpu").numpy()[change.indices % BLOCK].view(np.uint64)
    blocks = _mixed((change.indices // BLOCK).astype(np.uint64) + np.uint64(BLOCK)) | np.uint64(1)
    by = (change.values.astype(np.int64) - old.astype(np.int64)).view(np.uint64)
    return int((by * factors * blocks).sum(dtype=np.uint64)) * _name_factor(name) % MODULUS


def _block_factor(number: int) -> int:
    return int(_mixed(np.array([number + BLOCK], dtype=np.uint64))[0]) | 1


@cache
def _factors(device: str) -> Tensor:
    odd = _mixed(np.arange(BLOCK, dtype=np.uint64)) | np.uint64(1)
    return torch.from_numpy(odd.view(np.int64)).to(device)


@cache
def _name_factor(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """splitmix64: 64 bits that depend on all bits of the number."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _signed(number: int) -> int:
    return number - MODULUS if number >= MODULUS // 2 else number
