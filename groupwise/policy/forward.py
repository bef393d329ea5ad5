"""Log-probs of answers under a policy: the one forward pass that training and reference share."""

import torch
from torch import Tensor

from groupwise.batch import make_batch
from groupwise.policy import limits
from groupwise.policy.attention import UnsupportedAttention, attention_interface_problem
from groupwise.policy.packed_attention import use_packed_attention
from groupwise.policy.packing import Rows, microbatches
from groupwise.policy.policy import Policy
from groupwise.policy.rounding import is_rounding
from groupwise.policy.token_logprobs import device_memory, token_logprobs
from groupwise.types import Completion, Group, Problem


def answer_logprobs(
    policy: Policy,
    rows: Rows,
    temperature: float,
    *,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probs and entropies of the answers' tokens, at the sampling temperature.

    Answers that were drawn at temperatures of their own get their log-probs at those.
    """
    return policy.run(lambda: _answer_logprobs(policy, rows, temperature, entropy_grad))


def _answer_logprobs(
    policy: Policy, rows: Rows, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    with use_packed_attention(policy.model, rows):
        hidden = policy.body(
            input_ids=rows.tokens_RS,
            attention_mask=rows.real_RS if rows.groups is None else None,
            position_ids=rows.positions_RS,
        )
    logprobs, entropies = token_logprobs(
        hidden.flatten(0, 1)[rows.source_K],
        policy.head,
        rows.target_K,
        temperature if rows.temperature_K is None else rows.temperature_K,
        vocab=policy.vocab,
        entropy_grad=entropy_grad,
        kept_logits=limits.kept_logits(
            device_memory(hidden.device), hidden.element_size(), policy.adapter is None
        ),
    )
    return rows.scatter(logprobs), rows.scatter(entropies)


def shared_prefix_problem(policy: Policy) -> str | None:
    """Why this model cannot train on shared prefixes; None when it can, by trying it on a group."""
    if (problem := attention_interface_problem(policy.model)) is not None:
        return problem
    try:
        padded, shared = _probe(policy, "padded"), _probe(policy, "shared_prefix")
    except UnsupportedAttention as reason:
        return str(reason)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        return f"its forward pass refuses them ({str(error).splitlines()[0]})"
    gap = (padded - shared).abs().max().item()
    if is_rounding(policy, gap, half=0.15):
        return None
    return f"its log-probs change by {gap:.2g} with them"


@torch.no_grad()
def _probe(policy: Policy, layout: str) -> Tensor:
    """Log-probs of two short answers to one prompt, in order."""
    tokens = [token % policy.vocab for token in range(3, 12)]
    answers = (tokens[3:6], tokens[4:9])
    completions = tuple(Completion(tuple(a), (0.0,) * len(a), "eos") for a in answers)
    group = Group(Problem("probe", ""), tuple(tokens[:3]), completions)
    (micro,) = microbatches(make_batch([group]), layout, 10_000, policy.pad_id)
    logprobs, _ = answer_logprobs(policy, micro.rows.to(policy.device), 1.0)
    order = sorted(range(len(micro.members)), key=lambda line: micro.members[line])
    return logprobs[order]
