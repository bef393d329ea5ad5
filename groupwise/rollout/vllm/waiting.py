"""Answers that nobody draws yet, handed out so that a prompt is computed by one server if it can.

vLLM keeps the keys and values of a prompt for the next answer to it, each server for itself.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping


class Waiting:
    """Waiting({0: 0, 1: 0, 2: 1}) holds two answers to prompt 0 and one to prompt 1."""

    def __init__(self, prompt_of: Mapping[int, int]) -> None:
        self._prompt_of = prompt_of
        self._lock = threading.Lock()
        self._left: dict[int, deque[int]] = {}
        for answer, prompt in prompt_of.items():
            self._left.setdefault(prompt, deque()).append(answer)
        self._begun: dict[int, int] = {}
        """Prompt -> the server that drew its first answer."""

    def take(self, server: int) -> int | None:
        """An answer for this server: of a prompt that it has begun, of a new one, of any."""
        with self._lock:
            prompt = self._best(server)
            if prompt is None:
                return None
            self._begun.setdefault(prompt, server)
            answers = self._left[prompt]
            answer = answers.popleft()
            if not answers:
                del self._left[prompt]
            return answer

    def put_back(self, answer: int) -> None:
        """Its server failed; the prompt is anyone's again."""
        with self._lock:
            prompt = self._prompt_of[answer]
            self._left.setdefault(prompt, deque()).appendleft(answer)
            self._begun.pop(prompt, None)

    def clear(self) -> None:
        with self._lock:
            self._left.clear()

    def _best(self, server: int) -> int | None:
        def first(prompts: Iterable[int]) -> int | None:
            return next(iter(prompts), None)

        own = first(p for p in self._left if self._begun.get(p) == server)
        new = first(p for p in self._left if p not in self._begun)
        return own if own is not None else new if new is not None else first(self._left)
