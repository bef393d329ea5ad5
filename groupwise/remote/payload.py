"""What travels between processes: tensors as safetensors bytes, no pickle, checked on arrival.

Requests and replies are small and are encoded whole. Weights are a stream that nobody ever holds
whole: the sender makes one tensor's bytes at a time, the receiver copies each tensor into the
model as soon as it is complete. Names, shapes and sizes are checked against the model before the
first value is read; a checksum over all bytes (CRC-32: a cryptographic hash would take longer than
the network) tells both sides at the end that they mean the same weights.
"""

import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from groupwise.policy.policy import Policy

MAX_HEADER_BYTES = 4096
"""Of a request or reply: ours have a few hundred."""
CHUNK_BYTES = 4 << 20
"""Of weights, handed to the network at once."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError)

Weights = Mapping[str, Tensor]
Value = TypeVar("Value")
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], torch.int32]
Counts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), torch.int32]
Logprobs = Annotated[list[float], torch.float32]


class BadPayload(Exception):
    """Bytes that are no request or reply of ours; the message says why."""


class PayloadTooLarge(BadPayload):
    """More than the server takes at once."""


class Payload(BaseModel):
    """Fields with a dtype (`Tokens`) travel as one-row tensors, others as JSON in the header."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    def encode(self) -> bytes:
        rows = {name: dtype for name, dtype in _rows(type(self)).items() if getattr(self, name)}
        tensors = {n: torch.tensor(getattr(self, n), dtype=dtype) for n, dtype in rows.items()}
        others = self.model_dump(exclude=set(_rows(type(self))))
        return save(tensors, {name: json.dumps(value) for name, value in others.items()})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Exactly these fields; raises BadPayload for anything else."""
        size, dtypes = int.from_bytes(body[:8], "little"), _rows(cls)
        if len(body) < 8 or size > min(MAX_HEADER_BYTES, len(body) - 8):
            raise BadPayload("the body is no safetensors file")
        try:
            tensors = load(body)
            header = json.loads(body[8 : 8 + size]).get("__metadata__", {})
            fields: dict[str, Any] = {name: json.loads(text) for name, text in header.items()}
        except (SafetensorError, *UNREADABLE) as error:
            raise BadPayload(_no_safetensors(error)) from None
        for name, tensor in tensors.items():
            if tensor.ndim != 1 or tensor.dtype != dtypes.get(name):
                raise BadPayload(f"{name} must be one row of {dtypes.get(name, 'another payload')}")
        rows = {name: tensor.tolist() for name, tensor in tensors.items()}
        try:
            return cls.model_validate({name: [] for name in dtypes} | fields | rows)
        except ValidationError as error:
            raise BadPayload(first_problem(error)) from None


def _rows(payload: type[Payload]) -> dict[str, torch.dtype]:
    return {
        name: mark
        for name, field in payload.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, torch.dtype)
    }


def first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]


def split(values: Sequence[Value], lengths: Sequence[int]) -> list[tuple[Value, ...]]:
    """split("abc", [1, 2]) == [("a",), ("b", "c")]"""
    if sum(lengths) != len(values):
        raise BadPayload(
            f"the lengths add up to {sum(lengths)}, and there are {len(values)} values"
        )
    ends = itertools.accumulate(lengths)
    return [tuple(values[end - n : end]) for n, end in zip(lengths, ends, strict=True)]


FRAME = struct.Struct("<HII")
"""Before each part of a reply in parts: its status, the number of the part, and its length."""


class Frames:
    """`feed` it a reply in parts as it comes; `take(status, number, content)` gets each of them."""

    def __init__(self, take: Callable[[int, int, bytes], None]) -> None:
        self._take, self._bytes = take, bytearray()

    def feed(self, chunk: bytes) -> bool:
        """Whether a part is complete."""
        self._bytes += chunk
        complete = False
        while len(self._bytes) >= FRAME.size:
            status, number, size = FRAME.unpack_from(self._bytes)
            if len(self._bytes) < FRAME.size + size:
                break
            content = bytes(self._bytes[FRAME.size : FRAME.size + size])
            del self._bytes[: FRAME.size + size]
            self._take(status, number, content)
            complete = True
        return complete


def frame(status: int, number: int, content: bytes) -> bytes:
    return FRAME.pack(status, number, len(content)) + content


@dataclass(frozen=True)
class ModelLimits:
    """What a model takes: its vocabulary, and tokens on a row (None: any number)."""

    vocab: int
    positions: int | None

    @classmethod
    def of(cls, policy: Policy) -> "ModelLimits":
        config = policy.model.config.get_text_config()
        return ModelLimits(policy.vocab, getattr(config, "max_position_embeddings", None))

    def check(self, tokens: Sequence[int], longest: int) -> None:
        """Raises BadPayload for tokens outside the vocabulary, or a row that is too long."""
        if self.positions is not None and longest > self.positions:
            raise PayloadTooLarge(
                f"a row of {longest} tokens; the model takes at most {self.positions} positions"
            )
        check_vocabulary(tokens, self.vocab)


def check_vocabulary(tokens: Sequence[int], vocab: int) -> None:
    if max(tokens, default=0) >= vocab:
        raise BadPayload(f"tokens must be from 0 to {vocab - 1}, the model's vocabulary")


@dataclass(frozen=True)
class WeightsStream:
    """Iterate over it for the bytes of a safetensors file. `dtype`: convert to it on the way."""

    weights: Weights
    dtype: torch.dtype | None = None
    metadata: Mapping[str, str] | None = None

    def header(self) -> bytes:
        entries: dict[str, object] = {"__metadata__": self.metadata} if self.metadata else {}
        at = 0
        for name, weight in self.weights.items():
            dtype = self.dtype or weight.dtype
            end = at + weight.numel() * dtype.itemsize
            shape = list(weight.shape)
            entries[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [at, end]}
            at = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
        return len(text).to_bytes(8, "little") + text

    @property
    def length(self) -> int:
        """Bytes of the whole file."""
        sizes = (w.numel() * (self.dtype or w.dtype).itemsize for w in self.weights.values())
        return len(self.header()) + sum(sizes)

    def __iter__(self) -> Iterator[bytes]:
        yield self.header()
        for weight in self.weights.values():
            plain = weight.detach().to("cpu", self.dtype or weight.dtype).contiguous()
            raw = plain.reshape(-1).view(torch.uint8).numpy()
            for at in range(0, len(raw), CHUNK_BYTES):
                yield raw[at : at + CHUNK_BYTES].tobytes()


class Checksum:
    """`Checksum().add(piece)` gives the piece back; `str()` of it is the CRC-32 of all pieces."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, piece: bytes | bytearray) -> bytes | bytearray:
        self._value = zlib.crc32(piece, self._value)
        return piece

    def __str__(self) -> str:
        return f"{self._value:08x}"


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int


def max_weights_bytes(targets: Weights) -> int:
    """Of a file of such weights, in the widest type that a sender may use."""
    return 8 + _max_header(targets) + 8 * sum(weight.numel() for weight in targets.values())


def received_weights(
    chunks: Iterable[bytes | bytearray], targets: Weights, checksum: Checksum
) -> Iterator[tuple[str, Tensor]]:
    """Each target once the file's values are in it, as its bytes come; raises BadPayload for
    anything but a file of just these weights. Memory for one of them, however many there are."""
    source = _Source(chunks, checksum)
    size = int.from_bytes(source.read(8), "little")
    if not 2 <= size <= _max_header(targets):
        raise BadPayload("the body is no safetensors file of this model's weights")
    for entry in _entries(bytes(source.read(size)), targets):
        if entry.size:
            part = source.read(entry.size)
            values = torch.frombuffer(part, dtype=entry.dtype).reshape(entry.shape)
            with torch.no_grad():
                targets[entry.name].copy_(values)
        yield entry.name, targets[entry.name]
    source.expect_end()


class _Source:
    """`read(n)` of chunks that come in any sizes."""

    def __init__(self, chunks: Iterable[bytes | bytearray], checksum: Checksum) -> None:
        self._chunks, self._checksum, self._left = iter(chunks), checksum, memoryview(b"")

    def read(self, size: int) -> bytearray:
        part = bytearray()
        while len(part) < size:
            if not self._left and not self._next():
                raise BadPayload("the body ended before the weights did")
            taken = self._left[: size - len(part)]
            part += taken
            self._left = self._left[len(taken) :]
        return part

    def expect_end(self) -> None:
        while not self._left and self._next():
            pass
        if self._left:
            raise BadPayload("there are more bytes than the weights have")

    def _next(self) -> bool:
        chunk = next(self._chunks, None)
        self._left = memoryview(self._checksum.add(chunk or b""))
        return chunk is not None


def _max_header(targets: Weights) -> int:
    return 64 + 2 * len(WeightsStream(targets).header())


def _entries(text: bytes, targets: Weights) -> list[_Entry]:
    """The tensors in the order of their bytes; exactly the model's."""
    try:
        data: dict[str, Any] = json.loads(text)
        data.pop("__metadata__", None)
        entries, at = [], 0
        for name, entry in sorted(data.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            size = torch.empty(shape, dtype=dtype, device="meta").nbytes
            if entry["data_offsets"] != [at, at + size]:
                raise ValueError(f"{name} does not start where the tensor before it ends")
            entries.append(_Entry(name, dtype, shape, size))
            at += size
    except UNREADABLE as error:
        raise BadPayload(_no_safetensors(error)) from None
    shapes = {entry.name: entry.shape for entry in entries}
    if shapes != {name: tuple(weight.shape) for name, weight in targets.items()}:
        raise BadPayload("these are not the weights of this worker's model: other names or shapes")
    return entries


def _no_safetensors(error: Exception) -> str:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return f"the body is no safetensors file: {reason[:200]}"
