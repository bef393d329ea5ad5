"""The ranks of a run, and the collectives that they use.

Every rank runs the same loop on the same numbers. Where work can be split, each does its share and
all get everything. What travels between processes is JSON or tensors, never pickles. A run of one
process has `ALONE`, for which all of this does nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from groupwise.errors import GroupwiseError, RankLost

Item = TypeVar("Item")
BUCKET_BYTES = 64 * 2**20
"""Tensors are all-reduced in buckets of about this size."""


@dataclass(frozen=True)
class World:
    """World(rank=1, size=2) is the second of two processes.

    `local_rank` counts within a machine. `group` carries JSON, in CPU memory whatever the device;
    tensors take the default group of torch.distributed. `spare_group` is a second one like `group`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    group: Any = None
    spare_group: Any = None

    def on_spare_group(self) -> "World":
        """The same ranks with another process group, for collectives of another thread."""
        return replace(self, group=self.spare_group)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """What each rank gave, in the order of ranks: plain JSON values."""
        if self.size == 1:
            return [value]
        return [json.loads(part) for part in self._gather_bytes(json.dumps(value).encode())]

    def gather_floats(self, values_K: Tensor) -> Tensor:
        """The float32 numbers of all ranks, however many each has, in CPU memory."""
        if self.size == 1:
            return values_K
        parts = self._gather_bytes(values_K.detach().float().cpu().numpy().tobytes())
        return torch.cat([_tensor(part).view(torch.float32) for part in parts])

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        with lost_ranks():
            sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
            padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
            padded[: len(data)] = _tensor(data)
            received = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(received, padded, group=self.group)
        parts = zip(received, sizes, strict=True)
        return [part[: int(size)].numpy().tobytes() for part, size in parts]

    def gather_to_first(self, data: bytes) -> list[bytes]:
        """On rank 0 what each rank gave; nothing on the others."""
        if self.size == 1:
            return [data]
        sizes = self.gather(len(data))
        if not self.first:
            with lost_ranks():
                dist.send(_tensor(data), 0, group=self.group)
            return []
        return [data, *(self._receive(sizes[rank], rank) for rank in range(1, self.size))]

    def scatter_from_first(self, parts: Sequence[bytes]) -> bytes:
        """Of what rank 0 gives, one part for each rank, the own one."""
        if self.size == 1:
            return parts[0]
        sizes = self.broadcast([len(part) for part in parts])
        if not self.first:
            return self._receive(sizes[self.rank], 0)
        with lost_ranks():
            for rank in range(1, self.size):
                dist.send(_tensor(parts[rank]), rank, group=self.group)
        return parts[0]

    def _receive(self, size: int, rank: int) -> bytes:
        data = torch.empty(size, dtype=torch.uint8)
        with lost_ranks():
            dist.recv(data, rank, group=self.group)
        return data.numpy().tobytes()

    def broadcast(self, value: Any) -> Any:
        """What rank 0 gave."""
        return self.gather(value if self.first else None)[0]

    def max(self, number: int) -> int:
        return max(self.gather(number))

    def means(self, values: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Over what all ranks have: sums and counts travel, not the values."""
        sums: dict[str, tuple[float, int]] = {}
        for part in self.gather({name: (sum(each), len(each)) for name, each in values.items()}):
            for name, (total, count) in part.items():
                before = sums.get(name, (0.0, 0))
                sums[name] = before[0] + total, before[1] + count
        return {name: total / count if count else 0.0 for name, (total, count) in sums.items()}

    def barrier(self) -> None:
        self.gather(None)

    def share(self, items: Sequence[Item], work: Callable[[list[Item]], list[Any]]) -> list[Any]:
        """`work(items)`, of which each rank does every `size`-th; all get all. Results are JSON."""
        mine = list(items[self.rank :: self.size])
        results: list[Any] = [None] * len(items)
        for rank, part in enumerate(self.gather(work(mine) if mine else [])):
            results[rank :: self.size] = part
        return results

    def first_does(self, work: Callable[[], Any]) -> Any:
        """Rank 0 works and all get its result; an error that a user can fix is raised by all."""
        if self.size == 1:
            return work()
        outcome: dict[str, Any] = {}
        if self.first:
            try:
                outcome = {"value": work()}
            except GroupwiseError as error:
                self.broadcast({"error": str(error)})
                raise
        outcome = self.broadcast(outcome)
        if "error" in outcome:
            raise GroupwiseError(outcome["error"])
        return outcome["value"]

    @contextmanager
    def one_ahead(self) -> Iterator[None]:
        """The first rank of each machine runs this first (and downloads), then the others."""
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()

    @torch.no_grad()
    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum over all ranks, in place."""
        if self.size == 1:
            return
        bucket: list[Tensor] = []
        bytes_left = BUCKET_BYTES
        for tensor in tensors:
            if bucket and (
                bytes_left < 0
                or (tensor.dtype, tensor.device) != (bucket[0].dtype, bucket[0].device)
            ):
                _sum_bucket(bucket)
                bucket, bytes_left = [], BUCKET_BYTES
            bucket.append(tensor)
            bytes_left -= tensor.numel() * tensor.element_size()
        if bucket:
            _sum_bucket(bucket)


ALONE = World()


def _tensor(data: bytes) -> Tensor:
    """A copy, since `bytes` may not be written to."""
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


def _sum_bucket(tensors: Sequence[Tensor]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with lost_ranks():
        dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


# Parts of gloo's and NCCL's messages when another process is gone or does not answer.
_LOST_CONNECTION = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out",
    "no route to host",
    "socket closed",
    "remote process exited",
    "nccl communicator was aborted",
)


@contextmanager
def lost_ranks() -> Iterator[None]:
    """A collective that fails because another process is gone says so, in one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, dist.DistError) or any(
            words in text.lower() for words in _LOST_CONNECTION
        ):
            reason = text.strip().splitlines()[0][:200]
            raise RankLost(
                f"another rank ended or cannot be reached ({reason}); its own message says why. "
                "The same command goes on from the last checkpoint, with any number of processes"
            ) from error
        raise


def even_shares(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, in order, so that their sizes add up to about the same.

    even_shares([5, 1, 4, 2], 2) == [[0, 1], [2, 3]]: the largest first, to whoever has least.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        shares[rank].append(index)
        loads[rank] += sizes[index]
    return [sorted(share) for share in shares]
