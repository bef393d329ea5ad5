"""Does a server hold the model that we think? Asked at the start, and when one comes back.

A model is told by a hash over some values of every weight where both sides hold them in the same
precision and unquantized; elsewhere by log-probs of a fixed sequence, on which any two copies of a
model agree to rounding.

A sampling worker is sent the weights that training changes, so of it only what stays is compared:
the names and shapes of those weights, the vocabulary, which tokens end an answer, how tokens become
text (stop strings), and below an adapter the model itself.
"""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from groupwise.batch import make_batch
from groupwise.policy.load import Policy
from groupwise.policy.logprobs import batch_logprobs
from groupwise.policy.tokenizing import text_of
from groupwise.policy.weights import trained_weights
from groupwise.remote.client import Described
from groupwise.types import Completion, Group, Problem

PROBE_TOKENS = 32
TEXT_TOKENS = 64
HASHED_VALUES = 64
"""Of each weight: from its start, its middle and its end."""
TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 0.25
"""Largest mean difference of a probe's log-probs: both in fp32; where either side rounds more."""


class ModelFingerprint(Described):
    """`weights` is None where it could not be compared with anyone's."""

    dtype: str
    vocab: int
    probe: Annotated[tuple[float, ...], Field(min_length=PROBE_TOKENS, max_length=PROBE_TOKENS)]
    weights: str | None

    @property
    def name(self) -> str:
        """Short, and the same for the same model in the same precision."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


class WorkerFingerprint(Described):
    """`base` is the model below an adapter; None where there is none."""

    vocab: int
    dtype: str
    shapes: str
    eos_ids: tuple[int, ...]
    text: str
    base: ModelFingerprint | None


def model_fingerprint(policy: Policy) -> ModelFingerprint:
    """Of a policy as it is now: before training, the start of the run."""
    apart = policy.adapter is not None and not policy.adapter.starts_as_base
    return _fingerprint(policy, None if apart else _weights_hash(policy))


def worker_fingerprint(policy: Policy) -> WorkerFingerprint:
    adapter = policy.adapter
    with nullcontext() if adapter is None else adapter.off():
        base = None if adapter is None else _fingerprint(policy, _weights_hash(policy))
    shapes = [(name, tuple(w.shape)) for name, w in sorted(trained_weights(policy).items())]
    tokens = [i * 7919 % policy.vocab for i in range(TEXT_TOKENS)]
    text = "\x1f".join(text_of(policy.tokenizer, [token]) for token in tokens)
    return WorkerFingerprint(
        vocab=policy.vocab,
        dtype=str(policy.model.dtype).removeprefix("torch."),
        shapes=_digest(repr(shapes)),
        eos_ids=tuple(sorted(policy.eos_ids)),
        text=_digest(text),
        base=base,
    )


def model_difference(ours: ModelFingerprint, theirs: ModelFingerprint) -> str | None:
    """In what a server's model is another than ours; None where it is the same."""
    if ours.vocab != theirs.vocab:
        return f"it has a vocabulary of {theirs.vocab} tokens, the run's has {ours.vocab}"
    comparable = ours.dtype == theirs.dtype and None not in (ours.weights, theirs.weights)
    if comparable:
        return None if ours.weights == theirs.weights else "its weights are others"
    exact = ours.dtype == theirs.dtype == "float32"
    gap = probe_gap(ours.probe, theirs.probe, exact=exact)
    return None if gap is None else f"its log-probs of the same tokens differ by {gap} on average"


def worker_difference(ours: WorkerFingerprint, theirs: WorkerFingerprint) -> str | None:
    """In what a worker's model is another than the run's; None where it is the same."""
    if ours.vocab != theirs.vocab:
        return f"it has a vocabulary of {theirs.vocab} tokens, the run's has {ours.vocab}"
    if ours.shapes != theirs.shapes:
        return "its weights have other names or shapes"
    if ours.eos_ids != theirs.eos_ids:
        return f"its answers end at the tokens {theirs.eos_ids}, the run's at {ours.eos_ids}"
    if ours.text != theirs.text:
        return "its tokenizer makes other text of the same tokens"
    if ours.base is None or theirs.base is None:
        return None if ours.base is theirs.base else "only one of the two has an adapter"
    return model_difference(ours.base, theirs.base)


def probe_gap(ours: tuple[float, ...], theirs: tuple[float, ...], *, exact: bool) -> str | None:
    """The mean difference of two probes where it is too large, as text."""
    gap = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / len(ours)
    return None if gap <= (TOLERANCE if exact else ROUNDED_TOLERANCE) else f"{gap:.2g}"


def to_tensors(fingerprint: ModelFingerprint) -> dict[str, Tensor]:
    """For checkpoints: a run that goes on later still knows what it started from."""
    text = fingerprint.model_dump_json().encode()
    return {"fingerprint": torch.tensor(list(text), dtype=torch.uint8)}


def from_tensors(tensors: Mapping[str, Tensor]) -> ModelFingerprint:
    return ModelFingerprint.model_validate_json(bytes(tensors["fingerprint"].tolist()))


def probe_tokens(vocab: int) -> tuple[int, ...]:
    """Tokens from all over the vocabulary: one as the prompt, PROBE_TOKENS as its answer."""
    return tuple(i * 7919 % vocab for i in range(PROBE_TOKENS + 1))


def _fingerprint(policy: Policy, weights: str | None) -> ModelFingerprint:
    tokens = probe_tokens(policy.vocab)
    answer = Completion(tokens[1:], (0.0,) * PROBE_TOKENS, "eos")
    group = Group(Problem("probe", ""), tokens[:1], (answer,))
    batch = make_batch([group])
    logprobs_BT, _ = batch_logprobs(policy, batch, 1.0, PROBE_TOKENS + 1, layout="padded")
    dtype = str(policy.model.dtype).removeprefix("torch.") + " in 8 bits" * policy.int8
    return ModelFingerprint(
        dtype=dtype, vocab=policy.vocab, probe=tuple(logprobs_BT[0].tolist()), weights=weights
    )


def _weights_hash(policy: Policy) -> str | None:
    """Of all but an adapter's weights. None: with bits that are packed."""
    digest = hashlib.sha256()
    weights = {
        name.replace(".base_layer", ""): weight.detach()
        for name, weight in policy.model.named_parameters()
        if ".lora_" not in name
    }
    for name, weight in sorted(weights.items()):
        if not weight.is_floating_point():
            return None
        flat, middle = weight.flatten(), weight.numel() // 2
        ends = flat[:HASHED_VALUES], flat[-HASHED_VALUES:]
        some = torch.cat([ends[0], flat[middle : middle + HASHED_VALUES], ends[1]])
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
