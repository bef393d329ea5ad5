"""One reference server as the trainer sees it: what it offers, and log-probs of a question."""

import json
from dataclasses import dataclass

from groupwise.errors import ModelError
from groupwise.serve.client import LONGEST_TEXT, Address, Gone
from groupwise.serve.identity import Identity, from_json
from groupwise.serve.scored import Logps
from groupwise.serve.wire import (
    BadBody,
    Question,
    decode_answer,
    encode_question,
    longest_answer,
)


@dataclass(frozen=True)
class Offer:
    """What a server has: its model, and how many tokens it takes at once."""

    model: Identity
    tokens: int


class Server(Address):
    """Server("http://127.0.0.1:8650", token="...", token_env="GROUPWISE_TOKEN", timeout=60)"""

    def offer(self) -> Offer:
        text = self.request("GET", "/model", None, LONGEST_TEXT)
        try:
            data = json.loads(text)
            tokens = data["tokens"]
            if not isinstance(tokens, int) or tokens < 1:
                raise ValueError("it does not say how many tokens it takes")
            return Offer(from_json(data), tokens)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{self.url} answers, but not as a reference server of this version does "
                f"({error}); start it with `groupwise serve reference MODEL`"
            ) from error

    def logprobs(self, question: Question, model: str) -> Logps:
        """Log-probs by (group, answer), from the model of this name and no other."""
        reply = self.ask("POST", "/logprobs", encode_question(question), longest_answer(question))
        try:
            logprobs, name = decode_answer(reply, question)
        except BadBody as error:
            raise Gone(str(error)) from error
        if name != model:
            raise Gone("it was started again with another model")
        return logprobs
