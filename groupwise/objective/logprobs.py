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

from groupwise.compat.torch_compile import mark_rows_dynamic
from groupwise.objective.limits import CHUNK_LOGITS, CPU_CHUNK_LOGITS
from groupwise.objective.rowwise import logprobs_by_rows


def token_logprobs(
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

    def chunk_logprobs(
        hidden_CH: Tensor, targets_C: Tensor, temperature: float | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        logits_CV = head(hidden_CH)
        if not (compiled or entropy_grad):
            logprobs_C, entropies_C = logprobs_by_rows(logits_CV, targets_C, temperature)
            return logprobs_C, entropies_C if entropy else None
        if not compiled:
            return plain_logprobs(logits_CV, targets_C, temperature, entropy, entropy_grad)
        rows = (logits_CV, targets_C, temperature)
        mark_rows_dynamic(*(tensor for tensor in rows if isinstance(tensor, Tensor)))
        return _compiled()(logits_CV, targets_C, temperature, entropy, entropy_grad)

    if chunk_logits is None:
        chunk_logits = CPU_CHUNK_LOGITS if hidden_KH.device.type == "cpu" else CHUNK_LOGITS
    rows = max(1, chunk_logits // vocab)
    if len(targets_K) <= rows:
        return chunk_logprobs(hidden_KH, targets_K, temperature)

    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    parts = hidden_KH.split(rows), targets_K.split(rows)
    each = isinstance(temperature, Tensor)
    temperatures = temperature.split(rows) if each else [temperature] * len(parts[0])
    for chunk in zip(*parts, temperatures, strict=True):
        if torch.is_grad_enabled():
            logprobs_C, entropies_C = checkpoint(
                chunk_logprobs, *chunk, use_reentrant=False, preserve_rng_state=False
            )
        else:
            logprobs_C, entropies_C = chunk_logprobs(*chunk)
        logprobs.append(logprobs_C)
        if entropies_C is not None:
            entropies.append(entropies_C)
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def plain_logprobs(
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
    all_logprobs_CV = logits_CV.log_softmax(-1)
    logprobs_C = all_logprobs_CV.gather(-1, targets_C.unsqueeze(-1)).squeeze(-1)
    if not entropy:
        return logprobs_C, None
    if not entropy_grad:
        all_logprobs_CV = all_logprobs_CV.detach()
    return logprobs_C, -(all_logprobs_CV.exp() * all_logprobs_CV).sum(-1)


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(plain_logprobs)
