"""Log-probs of answers under a policy: the one forward pass that training and reference share."""

import torch
from torch import Tensor

from groupwise.batch import Rows, microbatches, to_device
from groupwise.objective.logprobs import token_logps
from groupwise.policy.load import Policy
from groupwise.policy.masks import attention_mask, flex_attending
from groupwise.types import Completion, Group, Problem


def answer_logps(
    policy: Policy, rows: Rows, temperature: float, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probs and entropies of the answers' tokens, at the sampling temperature."""
    hidden = policy.body(
        input_ids=rows.tokens_RS,
        attention_mask=attention_mask(policy.model, rows),
        position_ids=rows.positions_RS,
    )
    logps, entropies = token_logps(
        hidden.flatten(0, 1)[rows.source_K],
        policy.head,
        rows.target_K,
        temperature,
        vocab=policy.vocab,
        entropy=True,
        entropy_grad=entropy_grad,
    )
    assert entropies is not None
    return rows.scatter(logps), rows.scatter(entropies)


def shared_prefix_problem(policy: Policy) -> str | None:
    """Why this model cannot train on shared prefixes; None when it can, by trying it on a group."""
    try:
        padded = _probe(policy, "padded", flex=False)
        shared = _probe(policy, "shared_prefix", flex=False)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        return f"its forward pass refuses them ({str(error).splitlines()[0]})"
    gap = (padded - shared).abs().max().item()
    return None if gap <= _tolerance(policy) else f"its log-probs change by {gap:.2g} with them"


def flex_problem(policy: Policy) -> str | None:
    """Why flex attention cannot stand in for a dense mask; tried forward and backward."""
    if policy.device.type != "cuda" or policy.model.dtype == torch.float32:
        return "it is for half precision on CUDA"
    if getattr(policy.model.config.get_text_config(), "attn_logit_softcapping", None):
        return "the model caps its attention scores"
    try:
        dense = _probe(policy, "shared_prefix", flex=False)
        with torch.enable_grad():
            flex = _probe(policy, "shared_prefix", flex=True)
            with flex_attending(policy.model, True):
                flex.sum().backward()
    except Exception as error:  # a compiler can fail in any way; the dense mask always works
        return f"it does not run here ({str(error).splitlines()[0]})"
    finally:
        policy.model.zero_grad(set_to_none=True)
    gap = (dense - flex).abs().max().item()
    return None if gap <= _tolerance(policy) else f"log-probs change by {gap:.2g} with it"


def _tolerance(policy: Policy) -> float:
    return 1e-3 if policy.model.dtype == torch.float32 else 0.15


def _probe(policy: Policy, layout: str, *, flex: bool) -> Tensor:
    """Log-probs of two short answers to one prompt, in order."""
    tokens = [token % policy.vocab for token in range(3, 12)]
    answers = (tokens[3:6], tokens[4:9])
    completions = tuple(Completion(tuple(a), (0.0,) * len(a), "eos") for a in answers)
    group = Group(Problem("probe", ""), tuple(tokens[:3]), completions)
    (micro,) = microbatches([group], layout=layout, budget=10_000, pad_id=policy.pad_id)
    rows = to_device(micro, policy.device).rows
    with torch.set_grad_enabled(flex), flex_attending(policy.model, flex):
        logps, _ = answer_logps(policy, rows, 1.0)
    order = sorted(range(len(micro.members)), key=lambda line: micro.members[line])
    return logps[order]
