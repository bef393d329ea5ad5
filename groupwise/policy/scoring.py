"""Log-probs of sampled groups under a policy: a reference's, or the policy's own before an update.

In process and in a reference server this is the same code on the same micro-batches, so that both
give the same numbers.
"""

from collections.abc import Sequence

import torch

from groupwise.batch import Microbatch, blank, microbatches, to_device
from groupwise.policy.compiled import compiled_layers
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.load import Policy
from groupwise.types import Group

Scored = dict[tuple[int, int], tuple[list[float], list[float]]]
"""(group, answer) -> the log-probs and entropies of that answer's tokens."""

Logps = dict[tuple[int, int], list[float]]
"""(group, answer) -> the log-probs alone."""


@torch.no_grad()
def score_groups(
    policy: Policy,
    groups: Sequence[Group],
    temperature: float,
    tokens_at_once: int,
    *,
    layout: str | None = None,
    compiled: bool = False,
) -> Scored:
    """Every answer's log-probs and entropies. `layout`: another than the policy's own."""
    scored: Scored = {}
    pieces = microbatches(
        groups, layout=layout or policy.layout, budget=tokens_at_once, pad_id=policy.pad_id
    )
    for piece in with_blanks(policy, list(pieces)):
        rows = to_device(piece, policy.device).rows
        with compiled_layers(policy.model, compiled):
            logprobs, entropies = answer_logprobs(policy, rows, temperature, compiled=compiled)
        if not piece.members:
            continue
        lines = zip(piece.members, logprobs.tolist(), entropies.tolist(), strict=True)
        for (group, answer), logprob, entropy in lines:
            length = len(groups[group].completions[answer].tokens)
            scored[group, answer] = (logprob[:length], entropy[:length])
    return scored


def with_blanks(policy: Policy, pieces: list[Microbatch]) -> list[Microbatch]:
    """As many pieces as the ranks that hold the model together agree on; blank ones at the end."""
    missing = policy.passes(len(pieces)) - len(pieces)
    return pieces + [blank(policy.layout, policy.pad_id)] * missing
