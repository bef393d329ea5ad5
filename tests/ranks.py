"""Several runs, one after the other, in the same few ranks: importing torch is paid for once.

    train_in_ranks([(folder, ["distributed.kind=ddp"]), (other, ["distributed.kind=fsdp2"])])

A folder that comes twice is trained further. The ranks make the process group themselves, as Ray
does: `train` finds it there.
"""

import faulthandler
import gc
import json
import os
import pathlib
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file

LIMIT = 500
"""Seconds after which ranks say where they are and end."""
Jobs = Sequence[tuple[pathlib.Path, Sequence[str]]]


def train_in_ranks(
    jobs: Jobs,
    size: int = 2,
    python: pathlib.Path | str = sys.executable,
    more: Mapping[str, str] = os.environ,
) -> None:
    """Train each folder's run with its overrides of `runs.SMALL`, in `size` processes.

    `more`: their environment, beside who they are.
    """
    told = json.dumps([[str(folder), list(overrides)] for folder, overrides in jobs])
    port = free_port()
    ranks = [
        subprocess.Popen(
            [str(python), __file__, told],
            env={**more, **variables(rank, size, port), "DS_ACCELERATOR": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT + 20)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), "\n".join(o[-3000:] for o in outputs)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def weights(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "model").glob("*.safetensors")
    return load_file(path)


def largest_gap(one: pathlib.Path, other: pathlib.Path) -> float:
    """Between the final weights of two runs."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max((ours[name].float() - theirs[name].float()).abs().max().item() for name in ours)


def held_shapes() -> Counter[torch.Size]:
    """How many tensors of each shape are in this process's memory. FSDP2 keeps what it gathered as
    tensors without memory."""
    gc.collect()
    held = (item for item in gc.get_objects() if type(item) in (torch.Tensor, torch.nn.Parameter))
    there = (item for item in held if not item.is_meta)
    return Counter(item.shape for item in there if item.untyped_storage().nbytes())


def _main() -> None:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    from groupwise.training import api
    from runs import small_config

    run_loop = api.run_loop

    def and_count(parts: Any, state: Any, run: Any, *rest: Any) -> None:
        run_loop(parts, state, run, *rest)
        shape = state.policy.model.get_input_embeddings().weight.shape
        path = pathlib.Path(folder) / f"embeddings-{state.optimizer.world.rank}.json"
        path.write_text(str(held_shapes()[shape] - before[shape]))

    api.run_loop = and_count
    for folder, overrides in json.loads(sys.argv[1]):
        before = held_shapes()  # what earlier runs have left
        api.train(small_config(*overrides), folder, quiet=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    _main()
