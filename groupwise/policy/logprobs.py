"""Log-probs of sampled answers under a policy: a reference's, or the policy's own before an update.

In process and in a reference server this is the same code on the same micro-batches, so that both
give the same numbers.
"""

from dataclasses import replace

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.load import Policy
from groupwise.policy.packing import MicroBatches, microbatches
from groupwise.policy.training_layers import PLAIN, TrainingLayers


@torch.no_grad()
def batch_logprobs(
    policy: Policy,
    batch: Batch,
    temperature: float,
    tokens_at_once: int,
    *,
    layout: str | None = None,
    layers: TrainingLayers = PLAIN,
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probs and entropies of every answer. `layout`: another than the policy's own."""
    logprobs_BT = torch.zeros(batch.mask_BT.shape, device=policy.device)
    entropies_BT = torch.zeros_like(logprobs_BT)
    micros = microbatches(batch, layout or policy.layout, tokens_at_once, policy.pad_id)
    for micro in with_dummies(policy, micros):
        rows = micro.rows.to(policy.device)
        with layers.in_use(policy.model):
            logprobs, entropies = answer_logprobs(policy, rows, temperature)
        if micro.members:
            micro.put(logprobs, logprobs_BT)
            micro.put(entropies, entropies_BT)
    return logprobs_BT, entropies_BT


def with_dummies(policy: Policy, micros: MicroBatches) -> MicroBatches:
    """With dummies at the end, so that all ranks of a sharded model make equally many passes."""
    return replace(micros, dummies=policy.passes(len(micros)) - len(micros))
