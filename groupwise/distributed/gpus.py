"""How many processes `groupwise train` starts where nobody says: one for each GPU."""

import os
import pathlib

DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


def count_gpus() -> int:
    """GPUs that torch can use. Where the driver knows of none or one, torch is not imported."""
    if DRIVER.is_dir() and len(list(DRIVER.iterdir())) <= 1:
        return len(list(DRIVER.iterdir()))
    if not DRIVER.is_dir() and "CUDA_VISIBLE_DEVICES" not in os.environ:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def processes_for(gpus: int, device: str, prompts: int, samples_here: bool) -> tuple[int, str]:
    """The number of processes, and a line that says why (empty: there is nothing to say).

    processes_for(8, "auto", prompts=32, samples_here=True) == (8, "8 GPUs: ...")
    """
    if gpus < 2 or device not in ("auto", "cuda"):
        return 1, ""
    if not samples_here:
        return 1, (
            f"{gpus} GPUs: one trains, since answers are sampled in other processes, which need "
            "theirs; --nproc N trains with N"
        )
    count = min(gpus, prompts)
    which = "all of them" if count == gpus else f"{count}, one for each of batch.prompts"
    return count, f"{gpus} GPUs: training with {which} (--nproc 1: with one)"
