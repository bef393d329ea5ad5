"""Which machine and which versions a result belongs to."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "trl", "accelerate", "liger_kernel", "vllm")


def describe_machine(device: str) -> dict[str, Any]:
    threads = torch.get_num_threads()
    machine = {"cpu": _cpu(), "cores": os.cpu_count(), "threads": threads, "system": _system()}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    today = datetime.date.today().isoformat()
    return {"date": today, "machine": machine, "versions": versions}


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _cpu() -> str:
    """The processor's name, as Linux or else as Python knows it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
