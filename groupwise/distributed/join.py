"""Become one of the ranks that a launcher started; and leave when the run is over.

torchrun, accelerate launch, Ray and `groupwise train --nproc` all say who a process is by RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; srun says it by SLURM's own names
(slurm.py). A process group that is there already is used as it is and left as it was.
"""

import datetime
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist

from groupwise.distributed.slurm import adopt_slurm
from groupwise.distributed.world import ALONE, World, lost_ranks
from groupwise.errors import ConfigError

log = logging.getLogger("groupwise")


@contextmanager
def joined(device: str, timeout: float) -> Iterator[World]:
    """The world of this process: `ALONE` unless a launcher started several.

    No rank waits for another longer than `timeout` seconds.
    """
    adopt_slurm(os.environ)
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    if not cuda:
        # Where DeepSpeed is installed, other libraries import it, and it logs a lot about GPUs.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    ready = dist.is_available() and dist.is_initialized()
    if size == 1 and not (ready and dist.get_world_size() > 1):
        yield ALONE
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        _take_gpu(local_rank)
    limit = datetime.timedelta(seconds=timeout)
    if not ready:
        _check_variables()
        with lost_ranks():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=limit)
    with lost_ranks():
        groups = [dist.new_group(backend="gloo", timeout=limit) for _ in range(2)]
    world = World(dist.get_rank(), dist.get_world_size(), local_rank, *groups)
    if not world.first:  # rank 0 logs for all
        log.setLevel(logging.ERROR)
    try:
        with lost_ranks():
            yield world
    finally:
        if not ready:
            _leave()


def _take_gpu(local_rank: int) -> None:
    """Each rank of a machine has a GPU of its own; Ray and SLURM may show each just one."""
    count = torch.cuda.device_count()
    if count > 1 and local_rank >= count:
        raise ConfigError(
            f"local rank {local_rank} finds {count} GPUs on this machine: start at most {count} "
            "processes here, or use device=cpu"
        )
    torch.cuda.set_device(local_rank if count > 1 else 0)


def _check_variables() -> None:
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set: start the processes with "
            "`groupwise train --nproc N`, torchrun, accelerate launch or srun, or unset WORLD_SIZE"
        )


def _leave() -> None:
    try:
        dist.destroy_process_group()
    except RuntimeError as error:  # the other ranks have ended
        log.debug("leaving the process group: %s", error)
