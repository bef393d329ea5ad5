"""Out of memory is no reason to stop: take half as many tokens at once and do the piece again.

The gradient of an optimizer step does not depend on how it is cut, so the result is the same.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from groupwise.errors import ModelError

log = logging.getLogger("groupwise")

Result = TypeVar("Result")


@dataclass
class TokenBudget:
    """Tokens that go through the model at once. Shrinks when memory runs out, for the whole run."""

    tokens: int

    def fit(self, work: Callable[[int], Result], undo: Callable[[], None], smallest: int) -> Result:
        """`work(tokens)`, again with half as many as often as it runs out of memory.

        `undo` forgets what a failed attempt left behind; below `smallest` nothing gets smaller.
        """
        while True:
            try:
                return work(self.tokens)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_memory(error):
                    raise
                reason = str(error).splitlines()[0]
            undo()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.tokens <= smallest:
                raise ModelError(
                    f"out of memory with one row of {smallest} tokens at once ({reason}); "
                    "set gradient_checkpointing=true, or lower rollout.max_completion_tokens"
                )
            self.tokens = max(self.tokens // 2, smallest)
            log.warning(
                "out of memory: going on with batch.tokens_per_microbatch=%d, same gradient",
                self.tokens,
            )


def _is_memory(error: BaseException) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(error)
