"""Reference servers for tests: real HTTP, in a thread of this process or in one of their own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from groupwise.policy.load import Policy
from groupwise.remote.reference_server import ReferenceModel, reference_app
from serving import TOKEN, served, serving_command


@dataclass
class Running:
    url: str
    model: ReferenceModel


@contextmanager
def in_thread(policy: Policy, *, tokens: int = 4096, queue_size: int = 8) -> Iterator[Running]:
    """One at a time may compute: models of one process share the way that attention is routed."""
    model = ReferenceModel(policy, tokens, queue_size)
    with served(reference_app(model, TOKEN)) as url:
        yield Running(url, model)


@contextmanager
def in_process(model: str = "tiny", *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself on a free port; its address once it answers."""
    with serving_command("reference", model, *options) as running:
        yield running
