"""Out of memory is no reason to stop: take half as many tokens at once and do the piece again.

The gradient of an optimizer step does not depend on how it is cut, so the result is the same. Ranks
agree on it: when one runs out of memory, all do the piece again. Where they pass weights around
while they work (FSDP2, DeepSpeed) one cannot stop while the others go on, and the run ends.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from groupwise.distributed.world import ALONE, World
from groupwise.errors import ModelError, is_out_of_memory

log = logging.getLogger("groupwise")

Result = TypeVar("Result")


@dataclass
class TokenBudget:
    """Tokens that go through the model at once. Shrinks when memory runs out, for the whole run."""

    tokens: int = 16384
    world: World = ALONE
    together: bool = False
    """Whether ranks need each other within a piece of work, so that none can do it again."""

    def fit(self, work: Callable[[int], Result], undo: Callable[[], None], smallest: int) -> Result:
        """`work(tokens)`, again with half as many as often as it runs out of memory.

        `undo` forgets what a failed attempt left behind; below `smallest` nothing gets smaller.
        """
        while True:
            done: list[Result] = []
            reason = None
            try:
                done.append(work(self.tokens))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).splitlines()[0]
                if self.together:
                    raise ModelError(
                        f"out of memory ({reason}); run the same command again with "
                        f"batch.tokens_per_microbatch below {self.tokens}: it goes on from the "
                        "last checkpoint"
                    ) from error
            reason = next(filter(None, self.world.gather(reason)), None)
            if reason is None:
                return done[0]
            del done
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
