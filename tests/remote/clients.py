"""How tests call clients, which are coroutines, and engines of servers."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from torch import Tensor

from groupwise.remote.event_loop import client_loop
from groupwise.remote.published_weights import PublishedWeights
from groupwise.remote.worker_client import WorkerClient
from groupwise.remote.worker_payload import GenerateRequest
from groupwise.types import Completion

Result = TypeVar("Result")


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    return client_loop().wait(work)


def published(version: int, weights: dict[str, Tensor]) -> PublishedWeights:
    first = PublishedWeights()
    first.update(version, weights.items())
    return first


def send_weights(client: WorkerClient, weights: dict[str, Tensor], run: str, version: int) -> None:
    wait(client.send_weights(published(version, weights), run, None))


def sampled(
    client: WorkerClient, asked: GenerateRequest, vocab: int
) -> list[tuple[Completion, ...]]:
    answers: dict[int, tuple[Completion, ...]] = {}
    wait(client.generate(asked, vocab, answers.__setitem__))
    return [answers[number] for number in range(len(asked.requests))]
