"""Workers for tests: real HTTP, in a thread of this process or in a process of their own."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from groupwise.config import AdapterSettings
from groupwise.load import worker_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.remote.worker_model import WorkerModel
from groupwise.remote.worker_server import worker_app
from serving import TOKEN, served, serving_command


def tiny(adapter: AdapterSettings | None = None) -> Policy:
    cpu = torch.device("cpu")
    return load_policy("tiny", cpu, torch.float32, layout="padded", adapter=adapter)


@dataclass
class Running:
    url: str
    worker: WorkerModel


@contextmanager
def in_thread(
    policy: Callable[[AdapterSettings | None], Policy] = tiny, *, places: int = 8
) -> Iterator[Running]:
    """Only for a trainer that waits for its answers: models of one process share the way that
    attention is routed."""
    worker = WorkerModel(policy, lambda p, run: worker_engine(p, run, trust_code=False))
    with served(worker_app(worker, places, TOKEN)) as url:
        yield Running(url, worker)


@contextmanager
def in_process(model: str = "tiny", *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself on a free port; its address once it answers."""
    with serving_command("rollouts", model, *options) as running:
        yield running
