"""A batch: the answers that an optimizer step learns from, as tensors.

    batch = make_batch(groups)                   every answer of a rollout
    for minibatch in batch.minibatches(4):       what one optimizer step learns from
        for micro in minibatch.microbatches(...):    what goes through the model at once

All three are a `Batch`: one line per answer, padded to the longest. A micro-batch also has `rows`,
which are what the model reads (packing.py). A batch is in CPU memory and a micro-batch is moved to
the device when its turn comes; log-probs stay on the device that computed them until the loss uses
them; `stored_groups` makes Python numbers of them, for rollout files.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from groupwise.packing import Rows, pack, plan_microbatches
from groupwise.types import Completion, Group, Problem

Member = tuple[int, int]
"""(group, answer)"""


@dataclass(frozen=True)
class Denominator:
    """What an optimizer step holds, over all its micro-batches and ranks.

    Denominator(answers=128, tokens=5310, max_tokens=256)

    `answers` counts every answer, also those whose tokens are all masked (cut off, or empty).
    `tokens` counts the tokens that carry loss, after answers that were cut off are masked.
    `max_tokens` is the length limit of an answer, a setting. `kept_tokens` counts those that
    `top_entropy` keeps (None: all). `microbatches` matters to `microbatch_token_mean` alone.
    """

    answers: int
    tokens: int
    max_tokens: int
    kept_tokens: int | None = None
    microbatches: int = 1


@dataclass(frozen=True)
class Batch:
    """B answers of up to T tokens. What is stored in the padding never matters.

    Log-probs are of the token that was sampled, under logits / temperature.
    """

    mask_BT: Tensor
    """bool: tokens that the policy sampled and that count."""
    advantages_BT: Tensor
    """(B, 1), or (B, T) for credit by token."""
    denominator: Denominator
    """Counted over the whole optimizer step, before it was cut into micro-batches."""
    sampler_logprobs_BT: Tensor | None = None
    """What the engine that sampled reported."""
    old_logprobs_BT: Tensor | None = None
    """Under the policy before the rollout's first update. None: this is the first, so the same."""
    ref_logprobs_BT: Tensor | None = None
    """Under the reference, for KL."""
    old_entropies_BT: Tensor | None = None
    """Of the policy's whole distribution at each token, before the rollout's first update."""
    entropy_threshold: float | None = None
    """`top_entropy` lets tokens of at least this entropy carry policy loss. None: all."""
    groups: tuple[Group, ...] = ()
    """What it was made of."""
    members: tuple[Member, ...] = ()
    """(group, answer) of each line, as indices into `groups`. Empty: a blank batch."""
    lines: Tensor | None = None
    """Where each line is in the batch that this one was cut from."""
    rows: Rows | None = None
    """What the model reads. Micro-batches have it."""

    @property
    def keep_BT(self) -> Tensor | None:
        """bool: tokens that `top_entropy` lets carry policy loss. None: all."""
        if self.entropy_threshold is None or self.old_entropies_BT is None:
            return None
        return self.old_entropies_BT >= self.entropy_threshold

    @property
    def sampled_BT(self) -> Tensor:
        """bool: tokens that the policy sampled, whether they count or not."""
        drawn = [self.groups[group].completions[answer] for group, answer in self.members]
        return _sampled(drawn).to(self.mask_BT.device)

    @property
    def longest_row(self) -> int:
        """The longest prompt with one answer: the least that can go through the model at once."""
        return max(
            len(group.prompt_tokens) + max((len(c.tokens) for c in group.completions), default=0)
            for group in self.groups
        )

    def to(self, device: torch.device) -> "Batch":
        moved: dict[str, Any] = {
            name: t.to(device, non_blocking=True) for name, t in _tensors(self).items()
        }
        if self.rows is not None:
            rows = {k: t.to(device, non_blocking=True) for k, t in _tensors(self.rows).items()}
            moved["rows"] = replace(self.rows, **rows)
        return replace(self, **moved)

    def select(self, groups: Sequence[int]) -> "Batch":
        """These groups alone. They count as what they are of the whole: same denominator."""
        chosen = {group: index for index, group in enumerate(groups)}
        lines = [line for line, (group, _) in enumerate(self.members) if group in chosen]
        members = tuple((chosen[self.members[n][0]], self.members[n][1]) for n in lines)
        own = tuple(self.groups[group] for group in groups)
        return replace(self._cut(lines, self.mask_BT.shape[1]), groups=own, members=members)

    def minibatches(self, count: int) -> "Iterator[Batch]":
        """`count` runs of neighbouring groups, one for each optimizer step, as even as can be."""
        bounds = [round(i * len(self.groups) / count) for i in range(count + 1)]
        for first, last in itertools.pairwise(bounds):
            yield self.select(range(first, last)).counted()

    def microbatches(self, layout: str, budget: int, pad_id: int = 0) -> "Iterator[Batch]":
        """What goes through the model at once: at most `budget` tokens."""
        line_of = {member: line for line, member in enumerate(self.members)}
        for pieces in plan_microbatches(self.groups, layout, budget):
            members = tuple((group, answer) for group, answers in pieces for answer in answers)
            width = max(1, *(len(self.groups[g].completions[a].tokens) for g, a in members))
            micro = self._cut([line_of[member] for member in members], width)
            rows = pack(self.groups, pieces, layout, pad_id, width)
            yield replace(micro, members=members, rows=rows)

    def counted(self) -> "Batch":
        """With the denominator of an optimizer step that learns from all of this."""
        mask_BT, keep_BT = self.mask_BT, self.keep_BT
        kept = None if keep_BT is None else int((mask_BT & keep_BT.to(mask_BT.device)).sum())
        tokens, limit = int(mask_BT.sum()), self.denominator.max_tokens
        return replace(self, denominator=Denominator(len(self.members), tokens, limit, kept))

    def stored_groups(self) -> list[Group]:
        """The groups with every log-prob that this batch has, as Python numbers."""
        names = ("old_logprobs", "old_entropies", "ref_logprobs")
        tensors = {name: getattr(self, f"{name}_BT") for name in names}
        columns = {name: self.unpadded(t) for name, t in tensors.items() if t is not None}
        answers: list[list[Completion]] = [[] for _ in self.groups]
        for line, (group, answer) in enumerate(self.members):
            completion = self.groups[group].completions[answer]
            own = {name: tuple(lines[line]) for name, lines in columns.items()}
            answers[group].append(replace(completion, **own))
        return [
            replace(group, completions=tuple(completions))
            for group, completions in zip(self.groups, answers, strict=True)
        ]

    def unpadded(self, values_BT: Tensor) -> list[list[float]]:
        """The values of each answer's tokens, as Python numbers."""
        lengths = [
            len(self.groups[group].completions[answer].tokens) for group, answer in self.members
        ]
        return [line[:length] for line, length in zip(values_BT.tolist(), lengths, strict=True)]

    def _cut(self, lines: Sequence[int], width: int) -> "Batch":
        index = torch.tensor(lines, dtype=torch.long)
        tensors = {name: t for name, t in _tensors(self).items() if name.endswith("_BT")}
        cut = {name: t[index.to(t.device), :width] for name, t in tensors.items()}
        return replace(self, **cut, lines=index)


def make_batch(
    groups: Sequence[Group], *, mask_truncated: bool = False, max_tokens: int = 0
) -> Batch:
    """A rollout as one batch. Log-probs that the groups were stored with are taken over.

    With `mask_truncated`, answers that were cut off by the length limit `max_tokens` carry no loss.
    """
    completions = [completion for group in groups for completion in group.completions]
    sampled_BT = _sampled(completions)
    counts_B = [not (mask_truncated and completion.truncated) for completion in completions]
    batch = Batch(
        mask_BT=sampled_BT & torch.tensor(counts_B, dtype=torch.bool)[:, None],
        advantages_BT=_advantages(groups),
        denominator=Denominator(0, 0, max_tokens),
        sampler_logprobs_BT=_known([completion.logprobs for completion in completions]),
        old_logprobs_BT=_known([completion.old_logprobs for completion in completions]),
        ref_logprobs_BT=_known([completion.ref_logprobs for completion in completions]),
        old_entropies_BT=_known([completion.old_entropies for completion in completions]),
        groups=tuple(groups),
        members=tuple((n, a) for n, g in enumerate(groups) for a in range(len(g.completions))),
    )
    return batch.counted()


def with_advantages(batch: Batch, groups: Sequence[Group]) -> Batch:
    """The batch with the advantages of `groups`, which are its own with advantages filled in."""
    advantages_BT = _advantages(groups).to(batch.mask_BT.device)
    return replace(batch, advantages_BT=advantages_BT, groups=tuple(groups))


def blank(layout: str, pad_id: int) -> Batch:
    """Nobody's token: a pass for a rank that has no work left while the others still do."""
    nobody = Group(Problem("", ""), (pad_id,), (Completion((pad_id,), (0.0,), "eos"),))
    (micro,) = make_batch([nobody]).microbatches(layout, 1, pad_id)
    return replace(micro, mask_BT=torch.zeros_like(micro.mask_BT), members=())


def token_count(group: Group) -> int:
    """Tokens of a group: about what it costs to compute."""
    return len(group.prompt_tokens) + sum(len(c.tokens) for c in group.completions)


def _sampled(completions: Sequence[Completion]) -> Tensor:
    lines = [completion.sampled or (True,) * len(completion.tokens) for completion in completions]
    return _padded(lines, torch.bool)


def _advantages(groups: Sequence[Group]) -> Tensor:
    """One number per token; 0 where none were assigned."""
    lines: list[Sequence[float]] = []
    for group in groups:
        for answer, completion in enumerate(group.completions):
            value = group.advantages[answer] if group.advantages else 0.0
            each = value if isinstance(value, tuple) else (value,) * len(completion.tokens)
            lines.append(each)
    return _padded(lines)


def _known(lines: Sequence[Sequence[float] | None]) -> Tensor | None:
    """(B, T), or None where some answer has none."""
    known = [line for line in lines if line is not None]
    return _padded(known) if len(known) == len(lines) else None


def _padded(lines: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Lines of different lengths as one tensor of at least one column; 0 behind their ends.

    One conversion for all of them: a tensor for each line would take ten times as long.
    """
    lengths = torch.tensor([len(line) for line in lines], dtype=torch.long)
    width = max(1, int(lengths.max())) if len(lines) else 1
    padded = torch.zeros(len(lines), width, dtype=dtype)
    flat = torch.tensor(list(itertools.chain.from_iterable(lines)), dtype=dtype)
    padded[torch.arange(width) < lengths[:, None]] = flat
    return padded


def _tensors(item: Batch | Rows) -> dict[str, Tensor]:
    values = {field.name: getattr(item, field.name) for field in fields(item)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
