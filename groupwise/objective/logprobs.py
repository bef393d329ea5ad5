"""Log-probabilities and entropies of sampled tokens, without ever holding all logits at once.

A step's logits (tokens x vocabulary) outgrow the model itself. Only two numbers per token are
needed from them, so the projection goes chunk by chunk, and each chunk's logits are recomputed in
the backward pass instead of being kept. When all of them fit the budget there is one chunk and
nothing is computed twice. Both ways give the same numbers: no row of logits sees its neighbours.

K tokens (of any answers, flat), H hidden size, V vocabulary. Logits must be finite.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.objective.rowwise import scores_by_rows

CHUNK_LOGITS = 2**26
"""Logits alive at once: 256 MB in float32, and a small multiple of it in the backward pass."""
CPU_CHUNK_LOGITS = 2**27
"""A CPU has more memory for its speed, so there recomputing them begins later."""


def token_logps(
    hidden_KH: Tensor,
    head: Callable[[Tensor], Tensor],
    targets_K: Tensor,
    temperature: float | Tensor,
    *,
    vocab: int,
    entropy: bool = False,
    entropy_grad: bool = False,
    compiled: bool = False,
    chunk_logits: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(hidden) / temperature) at the targets, and the entropy if asked for.

    The temperature is one for all tokens, or one for each of them (K).
    `entropy_grad` keeps the entropy in the graph, for a bonus; otherwise it is a detached metric.
    Half-precision logits are raised to float32 first; wider ones stay as they are. `compiled` lets
    torch.compile do that on the way, so that float32 logits are never in memory.
    """

    def score(
        hidden_CH: Tensor, targets_C: Tensor, heat: float | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        logits_CV = head(hidden_CH)
        if not (compiled or entropy_grad):
            logps_C, entropies_C = scores_by_rows(logits_CV, targets_C, heat)
            return logps_C, entropies_C if entropy else None
        if not compiled:
            return scores(logits_CV, targets_C, heat, entropy, entropy_grad)
        for rows in (logits_CV, targets_C, heat):
            if isinstance(rows, Tensor):
                torch._dynamo.maybe_mark_dynamic(rows, 0)
        return _compiled()(logits_CV, targets_C, heat, entropy, entropy_grad)

    if chunk_logits is None:
        chunk_logits = CPU_CHUNK_LOGITS if hidden_KH.device.type == "cpu" else CHUNK_LOGITS
    rows = max(1, chunk_logits // vocab)
    if len(targets_K) <= rows:
        return score(hidden_KH, targets_K, temperature)

    logps: list[Tensor] = []
    entropies: list[Tensor] = []
    parts = hidden_KH.split(rows), targets_K.split(rows)
    each = isinstance(temperature, Tensor)
    heats = temperature.split(rows) if each else [temperature] * len(parts[0])
    for chunk in zip(*parts, heats, strict=True):
        if torch.is_grad_enabled():
            logps_C, entropies_C = checkpoint(
                score, *chunk, use_reentrant=False, preserve_rng_state=False
            )
        else:
            logps_C, entropies_C = score(*chunk)
        logps.append(logps_C)
        if entropies_C is not None:
            entropies.append(entropies_C)
    return torch.cat(logps), torch.cat(entropies) if entropy else None


def scores(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature: float | Tensor,
    entropy: bool,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs at the targets, and entropies, of one chunk: as plainly as torch can say it."""
    if logits_CV.dtype in (torch.bfloat16, torch.float16):
        logits_CV = logits_CV.float()
    if isinstance(temperature, Tensor):
        logits_CV = logits_CV / temperature[:, None].to(logits_CV.dtype)
    elif temperature != 1:
        logits_CV = logits_CV / temperature
    all_logps_CV = logits_CV.log_softmax(-1)
    logps_C = all_logps_CV.gather(-1, targets_C.unsqueeze(-1)).squeeze(-1)
    if not entropy:
        return logps_C, None
    if not entropy_grad:
        all_logps_CV = all_logps_CV.detach()
    return logps_C, -(all_logps_CV.exp() * all_logps_CV).sum(-1)


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(scores)
