"""Tensors into safetensors files of limited size, several of which are written at a time.

A model of 1.5 billion weights has 18 GB of optimizer state. One thread takes half a minute to copy
it from a GPU, to write it and to hash it, and a copy of all of it would have to fit into memory.
"""

import os
import pathlib
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from safetensors.torch import save_file
from torch import Tensor

FILE_BYTES = 2**29
"""The default size of a file; a larger tensor has a file of its own."""
WRITERS = min(8, os.cpu_count() or 1)
"""Files that are written or read at once. Of a GPU's tensors each takes FILE_BYTES of memory."""
_ALIGNED = 64


def write_files(
    tensors: Iterable[tuple[str, Tensor]],
    path_of: Callable[[int], pathlib.Path],
    file_bytes: int | None = None,
) -> list[dict[str, int]]:
    """Write them to `path_of(0)`, `path_of(1)`, ...; the bytes of each file's tensors by name.

    The stream is read to its end whatever happens: other ranks may take part in it.
    """
    stream = iter(tensors)
    written: list[dict[str, int]] = []
    jobs: list[Future[None]] = []
    buffers: queue.Queue[Tensor] = queue.Queue()
    for _ in range(WRITERS):
        buffers.put(torch.empty(0, dtype=torch.uint8))
    try:
        with ThreadPoolExecutor(WRITERS, "writer") as pool:
            for number, part in enumerate(_parts(stream, file_bytes or FILE_BYTES)):
                buffer = buffers.get()  # waits until a writer is free
                if any(job.done() and job.exception() for job in jobs):
                    break
                jobs.append(pool.submit(_write, part, path_of(number), buffer, buffers))
                written.append({name: tensor.nbytes for name, tensor in part.items()})
        for job in jobs:
            job.result()
    finally:
        for _ in stream:
            pass
    return written


def _parts(stream: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    """At least one, which may be empty."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in stream:
        if part and size + tensor.nbytes > limit:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach()
        size += tensor.nbytes
    yield part


def _write(
    part: Mapping[str, Tensor],
    path: pathlib.Path,
    buffer: Tensor,
    buffers: "queue.Queue[Tensor]",
) -> None:
    try:
        size = sum(_padded(tensor) for tensor in part.values() if tensor.device.type != "cpu")
        if len(buffer) < size:
            # Filled: a GPU's driver copies into memory that was never touched at a third the speed,
            # and for one thread at a time.
            buffer = torch.empty(size, dtype=torch.uint8).fill_(0)
        save_file(_on_cpu(part, buffer), path, metadata={"format": "pt"})
        with path.open("rb") as file:
            os.fsync(file.fileno())  # in this thread, while others copy
    finally:
        buffers.put(buffer)


def _on_cpu(part: Mapping[str, Tensor], buffer: Tensor) -> dict[str, Tensor]:
    """The tensors as they are, or copied into the buffer, one behind the other."""
    at, copies = 0, {}
    for name, tensor in part.items():
        if tensor.device.type == "cpu":
            copies[name] = tensor.contiguous()
            continue
        room = buffer[at : at + tensor.nbytes]
        copies[name] = room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        at += _padded(tensor)
    return copies


def _padded(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED) * _ALIGNED
