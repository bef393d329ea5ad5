"""When memory runs out, halve the number of tokens that go through the model at once, and retry.

The gradient of an optimizer step does not depend on how it is cut into micro-batches, so the result
is the same. When one rank runs out of memory, all ranks retry. With sharded weights (FSDP2,
DeepSpeed) ranks communicate inside a forward pass, so one cannot retry alone, and the run ends.
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
    """How many tokens go through the model at once. Lowered for good when memory runs out."""

    tokens: int = 16384
    world: World = ALONE
    together: bool = False
    """Whether ranks communicate within the work, so that no rank can retry it."""

    def fit(self, work: Callable[[int], Result], undo: Callable[[], None], smallest: int) -> Result:
        """`work(tokens)`, repeated with half as many tokens whenever it runs out of memory.

        `undo` drops what a failed attempt left behind, such as gradients. `smallest` is the lower
        limit: the longest row.
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
