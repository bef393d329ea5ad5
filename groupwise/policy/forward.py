"""Log-probs of answers under a policy: the one forward pass that training and reference share."""

import torch
from torch import Tensor

from groupwise.batch import Rows, microbatches, to_device
from groupwise.objective.logprobs import token_logps
from groupwise.policy.load import Policy
from groupwise.types import Completion, Group, Problem


def answer_logps(
    policy: Policy, rows: Rows, temperature: float, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probs and entropies of the answers' tokens, at the sampling temperature."""
    hidden = policy.body(
        input_ids=rows.tokens_RS,
        attention_mask=_attention(policy, rows),
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


def _attention(policy: Policy, rows: Rows) -> Tensor | dict[str, Tensor]:
    """The rows' mask in the form that this model takes; sliding windows are cut out by position."""
    if rows.attention.ndim == 2:
        return rows.attention  # padded rows: the model makes its own mask of this
    config = policy.model.config.get_text_config()
    dtype = None if config._attn_implementation == "sdpa" else policy.model.dtype
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return _as_mask(rows.attention, dtype)
    distance = rows.positions_RS[:, None, :, None] - rows.positions_RS[:, None, None, :]
    near = _as_mask(rows.attention & (distance < window), dtype)
    if getattr(config, "layer_types", None) is None:
        return near
    return {"full_attention": _as_mask(rows.attention, dtype), "sliding_attention": near}


def _as_mask(visible: Tensor, dtype: torch.dtype | None) -> Tensor:
    """SDPA takes a bool mask; eager attention adds a float one to its scores."""
    if dtype is None:
        return visible
    hidden = torch.finfo(dtype).min
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, hidden
    )


def shared_prefix_problem(policy: Policy) -> str | None:
    """Why this model cannot train on shared prefixes; None when it can, by trying it on a group."""
    tokens = [token % policy.vocab for token in range(3, 12)]
    answers = (tokens[3:6], tokens[4:9])
    completions = tuple(Completion(tuple(a), (0.0,) * len(a), "eos") for a in answers)
    group = Group(Problem("probe", ""), tuple(tokens[:3]), completions)
    results = []
    for layout in ("padded", "shared_prefix"):
        (micro,) = microbatches([group], layout=layout, budget=10_000, pad_id=policy.pad_id)
        with torch.no_grad():
            try:
                logps, _ = answer_logps(policy, to_device(micro, policy.device).rows, 1.0)
            except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
                return f"its forward pass refuses them ({str(error).splitlines()[0]})"
        order = sorted(range(len(micro.members)), key=lambda line: micro.members[line])
        results.append(logps[order])
    tolerance = 1e-3 if policy.model.dtype == torch.float32 else 0.15
    gap = (results[0] - results[1]).abs().max().item()
    return None if gap <= tolerance else f"its log-probs change by {gap:.2g} with them"
