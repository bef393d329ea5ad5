"""Records optimizer steps with their inputs and results, for `groupwise explain`."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from groupwise.batch import Batch


@dataclass(frozen=True)
class Update:
    """One optimizer step.

    Log-probs are NaN where nothing was computed, since there is no gradient; where that is so for
    all groups, no step was taken.
    """

    batch: Batch
    logprobs_BT: Tensor
    entropies_BT: Tensor
    entropy_weight: float
    loss: float | None = 0.0
    grad_norm: float | None = 0.0
    lr: float | None = None

    @cached_property
    def computed(self) -> frozenset[int]:
        """The groups whose log-probs are known, of an update that has ended."""
        known = ~self.logprobs_BT[:, 0].isnan()
        return frozenset(self.batch.members[line][0] for line in known.nonzero()[:, 0].tolist())


class Recorder:
    """Pass it to `grpo_step` or `learn`: afterwards it has their optimizer steps, in CPU memory.

    `tokens=False`: only loss, gradient norm and learning rate, without log-probs of tokens.
    """

    def __init__(self, *, tokens: bool = True) -> None:
        self.tokens = tokens
        self.updates: list[Update] = []

    def begin(self, batch: Batch, entropy_weight: float) -> None:
        if self.tokens:
            batch = batch.to(torch.device("cpu"), non_blocking=False)
        nothing_BT = torch.full(batch.mask_BT.shape, math.nan)
        self.updates.append(Update(batch, nothing_BT, nothing_BT.clone(), entropy_weight))

    def microbatch(self, lines: Tensor, logprobs_BT: Tensor, entropies_BT: Tensor) -> None:
        """What was computed for these lines of the optimizer step's batch."""
        if not self.tokens:
            return
        width = logprobs_BT.shape[1]
        self.updates[-1].logprobs_BT[lines, :width] = logprobs_BT.detach().float().cpu()
        self.updates[-1].entropies_BT[lines, :width] = entropies_BT.detach().float().cpu()

    def end(self, loss: float, grad_norm: float, lr: float) -> None:
        self.updates[-1] = replace(self.updates[-1], loss=loss, grad_norm=grad_norm, lr=lr)
