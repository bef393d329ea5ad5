"""Workers for tests: real HTTP, in a thread of this process or in a process of their own."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from groupwise.config import AdapterSettings, Config
from groupwise.load import make_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.rollout.workers.app import build_app, model_thread
from groupwise.rollout.workers.holder import Holder, Making
from groupwise.serve.model_thread import ModelThread
from serving import TOKEN, served, serving_command


def tiny(adapter: AdapterSettings | None = None) -> Policy:
    cpu = torch.device("cpu")
    return load_policy("tiny", cpu, torch.float32, layout="padded", adapter=adapter)


@dataclass
class Running:
    url: str
    holder: Holder
    thread: ModelThread[Any, Any]


@contextmanager
def in_thread(
    policy: Callable[[AdapterSettings | None], Policy] = tiny, *, places: int = 8
) -> Iterator[Running]:
    """Only for a trainer that waits for its answers: models of one process share the way that
    attention is routed."""
    making = Making(
        policy, lambda p, start: make_engine(p, Config(engine=start.engine, compile=start.compile))
    )
    holder, thread = Holder(making), model_thread(places)
    with served(build_app(holder, thread, TOKEN)) as url:
        yield Running(url, holder, thread)


@contextmanager
def in_process(model: str = "tiny", *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself on a free port; its address once it answers."""
    with serving_command("rollouts", model, *options) as running:
        yield running
