"""Log-probs by (group, answer), as lists: what a reference server sends."""

from collections.abc import Sequence

from groupwise.batch import make_batch
from groupwise.policy.load import Policy
from groupwise.policy.logprobs import batch_logprobs
from groupwise.types import Group

Scored = dict[tuple[int, int], tuple[list[float], list[float]]]
"""(group, answer) -> the log-probs and entropies of that answer's tokens."""

Logps = dict[tuple[int, int], list[float]]
"""(group, answer) -> the log-probs alone."""


def score_groups(
    policy: Policy,
    groups: Sequence[Group],
    temperature: float,
    tokens_at_once: int,
    *,
    layout: str | None = None,
    compiled: bool = False,
) -> Scored:
    batch = make_batch(groups)
    tensors = batch_logprobs(
        policy, batch, temperature, tokens_at_once, layout=layout, compiled=compiled
    )
    scored: Scored = {}
    for (group, answer), logprobs, entropies in zip(
        batch.members, *(tensor.tolist() for tensor in tensors), strict=True
    ):
        length = len(groups[group].completions[answer].tokens)
        scored[group, answer] = (logprobs[:length], entropies[:length])
    return scored
