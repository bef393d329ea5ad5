"""What is pushed to a server: a safetensors file of the policy's weights, or of its adapter alone.

Weights have the names that they have in a checkpoint, which is what vLLM loads, and the server's
precision: half the bytes where it serves bf16 and the trainer keeps fp32. The file is written
tensor by tensor, so the model is not held twice. An adapter travels with its config as the file's
metadata; the server makes PEFT's two files of it.
"""

import hashlib
import json
import pathlib
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from groupwise.policy.adapters import CONFIG, WEIGHTS, Adapter
from groupwise.policy.load import Policy

Kind = Literal["weights", "adapter"]
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
BLOCK = 2**20


@dataclass(frozen=True)
class Parcel:
    """A file to send, and its SHA-256, by which the receiver knows that it is whole."""

    kind: Kind
    path: pathlib.Path
    digest: bytes

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block


@contextmanager
def packed(policy: Policy, dtype: torch.dtype) -> Iterator[Parcel]:
    """The policy as it is now, in a file that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        if policy.adapter is None:
            write_tensors(named_weights(policy), dtype, path)
            kind: Kind = "weights"
        else:
            write_adapter(policy.adapter, path)
            kind = "adapter"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        yield Parcel(kind, path, digest)


def named_weights(policy: Policy) -> dict[str, Tensor]:
    """Every weight once, by the name that it has in a checkpoint."""
    from transformers.core_model_loading import revert_weight_conversion

    own = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    return revert_weight_conversion(policy.model, own)


def write_tensors(tensors: dict[str, Tensor], dtype: torch.dtype, path: pathlib.Path) -> None:
    """safetensors' format: the header's length, the header as JSON, then the bytes in its order."""
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * dtype.itemsize
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            plain = tensor.to("cpu", dtype).contiguous()
            file.write(plain.reshape(-1).view(torch.uint8).numpy().data)


def write_adapter(adapter: Adapter, path: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix="groupwise-") as name:
        folder = pathlib.Path(name)
        adapter.save(folder)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        save_file(load_file(folder / WEIGHTS), path, {"adapter_config": json.dumps(config)})
