"""Is a server's model the one that a run started from? Asked at the start, and when one comes back.

By a hash over some values of every weight where both sides hold them in the same precision and
unquantized. Elsewhere by log-probs of a fixed sequence, on which any two copies of a model agree,
to rounding.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.serve.scored import score_groups
from groupwise.types import Completion, Group, Problem

PROBE_TOKENS = 32
VALUES = 64
"""Of each weight that are hashed: from its start, its middle and its end."""
TOLERANCE, ROUNDED = 1e-3, 0.25
"""Largest mean difference of a probe's log-probs: both in fp32; where either side rounds more."""


@dataclass(frozen=True)
class Identity:
    """`weights` is None where it could not be compared with anyone's."""

    dtype: str
    vocab: int
    probe: tuple[float, ...]
    weights: str | None

    @property
    def name(self) -> str:
        """Short, and the same for the same model in the same precision."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def identify(policy: Policy) -> Identity:
    """Who a policy is now: before training, the start of the run."""
    apart = policy.adapter is not None and not policy.adapter.starts_as_base
    return Identity(
        _dtype(policy), policy.vocab, _probe(policy), None if apart else _weights_hash(policy)
    )


def identify_base(policy: Policy) -> Identity:
    """Who the model below an adapter is, at any time; call it with the adapter off."""
    return Identity(_dtype(policy), policy.vocab, _probe(policy), _weights_hash(policy))


def difference(ours: Identity, theirs: Identity) -> str | None:
    """In what a server's model is another than ours; None where it is the same."""
    if ours.vocab != theirs.vocab:
        return f"it has a vocabulary of {theirs.vocab} tokens, the run's has {ours.vocab}"
    comparable = ours.dtype == theirs.dtype and None not in (ours.weights, theirs.weights)
    if comparable:
        return None if ours.weights == theirs.weights else "its weights are others"
    gaps = [abs(a - b) for a, b in zip(ours.probe, theirs.probe, strict=True)]
    gap = sum(gaps) / len(gaps)
    exact = ours.dtype == theirs.dtype == "float32"
    if not gap <= (TOLERANCE if exact else ROUNDED):
        return f"its log-probs of the same tokens differ by {gap:.2g} on average"
    return None


def to_json(identity: Identity) -> dict[str, Any]:
    return {**vars(identity), "probe": list(identity.probe)}


def from_json(data: Mapping[str, Any]) -> Identity:
    """Raises ValueError for anything that no server of ours says."""
    dtype, vocab, probe, weights = (data[k] for k in ("dtype", "vocab", "probe", "weights"))
    numbers = isinstance(probe, list) and all(isinstance(value, float) for value in probe)
    known = isinstance(dtype, str) and isinstance(vocab, int) and isinstance(weights, str | None)
    if not known or not numbers or len(probe) != PROBE_TOKENS:
        raise ValueError("it does not describe a model")
    return Identity(dtype, vocab, tuple(probe), weights)


def to_tensors(identity: Identity) -> dict[str, Tensor]:
    """For checkpoints: a run that goes on later still knows what it started from."""
    text = f"{identity.dtype}\n{identity.vocab}\n{identity.weights or ''}"
    return {
        "probe": torch.tensor(identity.probe, dtype=torch.float64),
        "model": torch.tensor(list(text.encode()), dtype=torch.uint8),
    }


def from_tensors(tensors: Mapping[str, Tensor]) -> Identity:
    dtype, vocab, weights = bytes(tensors["model"].tolist()).decode().split("\n")
    return Identity(dtype, int(vocab), tuple(tensors["probe"].tolist()), weights or None)


def probe_tokens(vocab: int) -> tuple[int, ...]:
    """Tokens from all over the vocabulary: one as the prompt, PROBE_TOKENS as its answer."""
    return tuple(i * 7919 % vocab for i in range(PROBE_TOKENS + 1))


def _probe(policy: Policy) -> tuple[float, ...]:
    """Log-probs of the probe's answer."""
    tokens = probe_tokens(policy.vocab)
    answer = Completion(tokens[1:], (0.0,) * PROBE_TOKENS, "eos")
    group = Group(Problem("probe", ""), tokens[:1], (answer,))
    logprobs, _ = score_groups(policy, [group], 1.0, PROBE_TOKENS + 1, layout="padded")[0, 0]
    return tuple(logprobs)


def _dtype(policy: Policy) -> str:
    return str(policy.model.dtype).removeprefix("torch.") + " in 8 bits" * policy.int8


def _weights_hash(policy: Policy) -> str | None:
    """Of all but an adapter's weights. None: with bits that are packed."""
    found = hashlib.sha256()
    weights = {
        name.replace(".base_layer", ""): weight.detach()
        for name, weight in policy.model.named_parameters()
        if ".lora_" not in name
    }
    for name, weight in sorted(weights.items()):
        if not weight.is_floating_point():
            return None
        flat, middle = weight.flatten(), weight.numel() // 2
        some = torch.cat([flat[:VALUES], flat[middle : middle + VALUES], flat[-VALUES:]])
        found.update(f"{name} {tuple(weight.shape)}".encode())
        found.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
