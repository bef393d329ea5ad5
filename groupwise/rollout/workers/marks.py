"""Does a worker have the run's model? Asked when a run begins with it, and when one comes back.

Weights that training changes are sent to it, so only what stays is compared: the names and shapes
of those weights, the vocabulary, which tokens end an answer, how tokens become text (stop strings),
and below an adapter the model itself.
"""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from groupwise.policy.load import Policy
from groupwise.rollout.workers.weights import trained_weights
from groupwise.serve import identity
from groupwise.serve.identity import Identity

PROBE_TOKENS = 64


@dataclass(frozen=True)
class Marks:
    """`base` is who the model below an adapter is; None where there is none."""

    vocab: int
    dtype: str
    shapes: str
    ends: tuple[int, ...]
    text: str
    base: Identity | None


def marks_of(policy: Policy) -> Marks:
    adapter = policy.adapter
    with nullcontext() if adapter is None else adapter.off():
        base = None if adapter is None else identity.identify_base(policy)
    shapes = [(name, tuple(w.shape)) for name, w in sorted(trained_weights(policy).items())]
    tokens = [i * 7919 % policy.vocab for i in range(PROBE_TOKENS)]
    text = "\x1f".join(policy.tokenizer.decode([token]) for token in tokens)
    return Marks(
        policy.vocab,
        str(policy.model.dtype).removeprefix("torch."),
        _digest(repr(shapes)),
        tuple(sorted(policy.eos_ids)),
        _digest(text),
        base,
    )


def difference(ours: Marks, theirs: Marks) -> str | None:
    """In what a worker's model is another than the run's; None where it is the same."""
    if ours.vocab != theirs.vocab:
        return f"it has a vocabulary of {theirs.vocab} tokens, the run's has {ours.vocab}"
    if ours.shapes != theirs.shapes:
        return "its weights have other names or shapes"
    if ours.ends != theirs.ends:
        return f"its answers end at the tokens {theirs.ends}, the run's at {ours.ends}"
    if ours.text != theirs.text:
        return "its tokenizer makes other text of the same tokens"
    if ours.base is None or theirs.base is None:
        return None if ours.base is theirs.base else "only one of the two has an adapter"
    return identity.difference(ours.base, theirs.base)


def to_json(marks: Marks) -> dict[str, Any]:
    base = None if marks.base is None else identity.to_json(marks.base)
    return {**vars(marks), "ends": list(marks.ends), "base": base}


def from_json(data: Mapping[str, Any]) -> Marks:
    """Raises ValueError, KeyError or TypeError for anything that no worker of ours says."""
    vocab, ends, base = data["vocab"], data["ends"], data["base"]
    texts = [data[name] for name in ("dtype", "shapes", "text")]
    whole = isinstance(ends, list) and all(isinstance(end, int) for end in ends)
    if not (isinstance(vocab, int) and whole and all(isinstance(text, str) for text in texts)):
        raise ValueError("it does not describe a model")
    found = None if base is None else identity.from_json(base)
    return Marks(vocab, texts[0], texts[1], tuple(ends), texts[2], found)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
