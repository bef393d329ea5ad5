"""Weights on their way: a safetensors file that nobody ever holds whole.

The sender makes one tensor's bytes at a time, the receiver copies each tensor into the model as
soon as it is complete. Names, shapes and sizes are checked against the model before the first value
is read; a checksum over all bytes (CRC-32: a cryptographic hash would take longer than the
network) tells both sides at the end that they mean the same weights.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.serve.wire import BadBody

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PIECE = 4 << 20
"""Bytes handed to the network at once."""

Weights = Mapping[str, Tensor]


def trained_weights(policy: Policy) -> dict[str, Tensor]:
    """All that training changes: the adapter's weights where there is one, else the model's."""
    if policy.adapter is not None:
        return {name: weight.detach() for name, weight in policy.adapter.weights().items()}
    return {name: weight.detach() for name, weight in policy.model.named_parameters()}


def head(weights: Weights) -> bytes:
    """How a safetensors file of these weights begins."""
    entries, at = {}, 0
    for name, weight in weights.items():
        size = weight.numel() * weight.element_size()
        entries[name] = {
            "dtype": NAMES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def length(weights: Weights) -> int:
    """Bytes of the whole file."""
    return len(head(weights)) + sum(w.numel() * w.element_size() for w in weights.values())


class Sending:
    """Iterate over it for the file's bytes; afterwards `checksum` is theirs."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._sum = 0

    def __iter__(self) -> Iterator[bytes]:
        yield self._noted(head(self.weights))
        for weight in self.weights.values():
            raw = weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            for at in range(0, len(raw), PIECE):
                yield self._noted(raw[at : at + PIECE].tobytes())

    @property
    def checksum(self) -> str:
        return f"{self._sum:08x}"

    def _noted(self, piece: bytes) -> bytes:
        self._sum = zlib.crc32(piece, self._sum)
        return piece


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int


class Receiving:
    """`feed` it the file's bytes as they come; `finish` when there are no more."""

    def __init__(self, targets: Weights) -> None:
        self.targets = targets
        self._sum = 0
        self._part, self._wanted = bytearray(), 8
        self._head_read = False
        self._entries: list[_Entry] | None = None
        self._longest_head = 64 + 2 * len(head(targets)) if targets else 4096

    def feed(self, piece: bytes | bytearray) -> None:
        self._sum = zlib.crc32(piece, self._sum)
        view = memoryview(piece)
        while len(view):
            if self._entries == []:
                raise BadBody("there are more bytes than the weights have")
            take = self._wanted - len(self._part)
            self._part += view[:take]
            view = view[take:]
            if len(self._part) == self._wanted:
                self._complete()

    def finish(self) -> str:
        """The checksum; raises BadBody where weights are missing."""
        if self._entries != []:
            raise BadBody("the body ended before the weights did")
        return f"{self._sum:08x}"

    def _complete(self) -> None:
        part, self._part = self._part, bytearray()
        if not self._head_read:
            self._wanted, self._head_read = int.from_bytes(part, "little"), True
            if not 2 <= self._wanted <= self._longest_head:
                raise BadBody("the body is no safetensors file of this model's weights")
            return
        if self._entries is None:
            self._entries = _entries(bytes(part), self.targets)
        else:
            self._copy(self._entries.pop(0), part)
        while self._entries and self._entries[0].size == 0:
            self._entries.pop(0)
        self._wanted = self._entries[0].size if self._entries else 0

    @torch.no_grad()
    def _copy(self, entry: _Entry, part: bytearray) -> None:
        values = torch.frombuffer(part, dtype=entry.dtype).reshape(entry.shape)
        self.targets[entry.name].copy_(values)


def _entries(text: bytes, targets: Weights) -> list[_Entry]:
    """The tensors in the order of their bytes; exactly the model's."""
    try:
        data: dict[str, Any] = json.loads(text)
        data.pop("__metadata__", None)
        ordered = sorted(data.items(), key=lambda item: item[1]["data_offsets"])
        found, at = [], 0
        for name, entry in ordered:
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            size = torch.empty(shape, dtype=dtype, device="meta").nbytes
            if entry["data_offsets"] != [at, at + size]:
                raise ValueError(f"{name} does not lie behind the one before it")
            found.append(_Entry(name, dtype, shape, size))
            at += size
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise BadBody(f"the body is no safetensors file: {str(error)[:200]}") from None
    shapes = {entry.name: entry.shape for entry in found}
    if shapes != {name: tuple(weight.shape) for name, weight in targets.items()}:
        raise BadBody("these are not the weights of this worker's model: other names or shapes")
    return found
