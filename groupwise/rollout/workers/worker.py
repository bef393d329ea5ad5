"""One worker as the trainer sees it, over HTTP. What fails is one of client.py's errors."""

import json
from urllib.parse import quote

from groupwise.errors import ModelError
from groupwise.rollout.workers.holder import Start
from groupwise.rollout.workers.marks import Marks, from_json
from groupwise.rollout.workers.order import (
    Answers,
    Order,
    decode_answers,
    encode_order,
    longest_reply,
)
from groupwise.rollout.workers.weights import Sending, Weights, length
from groupwise.serve.client import LONGEST_TEXT, Address, Gone
from groupwise.serve.wire import BadBody


class Worker(Address):
    """Worker("http://10.0.0.2:8660", "s3cret", "GROUPWISE_TOKEN", 600.0, "rollout worker")"""

    def begin(self, start: Start) -> Marks:
        """From now on it works for this run; who its model is."""
        reply = self.ask("POST", "/begin", start.model_dump_json().encode(), LONGEST_TEXT)
        try:
            return from_json(json.loads(reply))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{self.url} answers, but not as a rollout worker of this version does "
                f"({error}); start it with `groupwise serve rollouts MODEL`"
            ) from error

    def send(self, weights: Weights, run: str, version: int) -> None:
        """Give it weights. They are streamed: memory for one tensor, however large the model."""
        sending = Sending(weights)
        path = f"/weights?run={quote(run)}&version={version}"
        reply = self.request("PUT", path, sending, LONGEST_TEXT, length(weights))
        try:
            arrived = json.loads(reply)["crc32"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Gone("its reply to weights is none") from error
        if arrived != sending.checksum:
            raise Gone("weights arrived damaged")

    def generate(self, order: Order, vocab: int) -> Answers:
        try:
            reply = self.ask("POST", "/generate", encode_order(order), longest_reply(order))
        except MemoryError as error:
            raise ModelError(f"a rollout worker is {error}; lower engine.max_batch") from error
        try:
            return decode_answers(reply, order, vocab)
        except BadBody as error:
            raise Gone(str(error)) from error
