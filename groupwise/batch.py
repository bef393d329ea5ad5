"""A batch: the answers that an optimizer step learns from, as tensors.

    batch = make_batch(groups)                   every answer of a rollout
    for minibatch in batch.minibatches(4):       what one optimizer step learns from
        for micro in microbatches(minibatch, ...):   what goes through the model at once

All three are a `Batch`: one line per answer, padded to the longest. How a micro-batch is packed for
the model is the policy's business (policy/packing.py). A batch is in CPU memory and a micro-batch
is moved to the device when its turn comes; log-probs stay on the device that computed them until
the loss uses them; `stored_groups` makes Python numbers of them, for rollout files.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from groupwise.types import Advantage, Completion, Group

STORED = ("old_logprobs", "old_entropies", "ref_logprobs")
"""What is known of each token and is stored in rollout files."""


@dataclass(frozen=True)
class OnDevice:
    """A dataclass whose tensors move to a device together."""

    def to(self, device: torch.device, non_blocking: bool = True) -> Self:
        items: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: x for name, x in items.items() if isinstance(x, Tensor | OnDevice)}
        moved = {name: copied_to(x, device, non_blocking) for name, x in tensors.items()}
        return replace(self, **moved)


def copied_to(x: Any, device: torch.device, non_blocking: bool = True) -> Any:
    """The tensor on the device. The copy to a GPU is asynchronous, which needs pinned memory."""
    if device.type == "cuda" and isinstance(x, Tensor) and x.device.type == "cpu" and non_blocking:
        x = x.pin_memory()
    return x.to(device, non_blocking=non_blocking)


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
class Batch(OnDevice):
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
    share_BT: Tensor | None = None
    """(B, 1), where episodes were split: the share of its episode's tokens that a line has."""
    entropy_threshold: float | None = None
    """`top_entropy` lets tokens of at least this entropy carry policy loss. None: all."""
    groups: tuple[Group, ...] = ()
    """The groups that it was made from."""
    members: tuple[tuple[int, int], ...] = ()
    """(group, answer) of each line, as indices into `groups`. Empty: a dummy micro-batch."""
    lines: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """The index of each line in the batch that this one was cut from. Empty: it was not cut."""
    group_indices: tuple[int, ...] = ()
    """With several ranks: the index of each of `groups` among all groups of the step."""
    group_total: int = 0
    """Groups of the whole step, where there are `group_indices`."""

    @property
    def keep_BT(self) -> Tensor | None:
        """bool: tokens that `top_entropy` lets carry policy loss. None: all."""
        if self.entropy_threshold is None or self.old_entropies_BT is None:
            return None
        return self.old_entropies_BT >= self.entropy_threshold

    @property
    def completions(self) -> list[Completion]:
        """The answer of each line."""
        return [self.groups[group].completions[answer] for group, answer in self.members]

    @property
    def sampled_BT(self) -> Tensor:
        """bool: tokens that the policy sampled, whether they count or not."""
        return _sampled(self.completions).to(self.mask_BT.device)

    @property
    def longest_row(self) -> int:
        """The longest prompt with one answer: the least that can go through the model at once."""
        answers = [max((len(c.tokens) for c in g.completions), default=0) for g in self.groups]
        prompts = [len(group.prompt_tokens) for group in self.groups]
        return max((p + a for p, a in zip(prompts, answers, strict=True)), default=1)

    def select(self, groups: Sequence[int]) -> "Batch":
        """These groups alone, with the denominator of the whole batch."""
        chosen = {group: index for index, group in enumerate(groups)}
        lines = [line for line, (group, _) in enumerate(self.members) if group in chosen]
        members = tuple((chosen[self.members[n][0]], self.members[n][1]) for n in lines)
        own = tuple(self.groups[group] for group in groups)
        return replace(self.cut(lines, self.mask_BT.shape[1]), groups=own, members=members)

    def minibatches(self, count: int) -> "Iterator[Batch]":
        """`count` runs of neighbouring groups, one for each optimizer step, as even as can be."""
        indices = self.group_indices if self.group_total else range(len(self.groups))
        for first, last in minibatch_bounds(self.group_total or len(self.groups), count):
            yield self.select([n for n, i in enumerate(indices) if first <= i < last]).counted()

    def cut(self, lines: Sequence[int], width: int) -> "Batch":
        """These lines alone, up to `width` tokens of each."""
        index = torch.tensor(lines, dtype=torch.long)
        tensors = {item.name: getattr(self, item.name) for item in fields(self)}
        cut = {
            name: tensor[index.to(tensor.device), :width]
            for name, tensor in tensors.items()
            if name.endswith("_BT") and tensor is not None
        }
        return replace(self, **cut, lines=index)

    def put(self, values_BT: Tensor, whole_BT: Tensor) -> Tensor:
        """Write values of this batch's tokens into those of the batch that it was cut from."""
        lines, width = self.lines.to(whole_BT.device), values_BT.shape[1]
        whole_BT[lines, :width] = values_BT.to(whole_BT)
        return whole_BT

    def counted(self) -> "Batch":
        """With the denominator of an optimizer step that learns from all of this."""
        mask_BT, keep_BT = self.mask_BT, self.keep_BT
        kept = None if keep_BT is None else int((mask_BT & keep_BT.to(mask_BT.device)).sum())
        tokens, limit = int(mask_BT.sum()), self.denominator.max_tokens
        # An episode that was split into several lines is one answer.
        answers = sum(self.groups[g].completions[a].segment == 0 for g, a in self.members)
        return replace(self, denominator=Denominator(answers, tokens, limit, kept))

    def stored_groups(self) -> list[Group]:
        """The groups with every log-prob that this batch has, as Python numbers."""
        tensors = {name: getattr(self, f"{name}_BT") for name in STORED}
        columns = {name: self.unpadded(t) for name, t in tensors.items() if t is not None}
        answers: list[list[Completion]] = [[] for _ in self.groups]
        for line, completion in enumerate(self.completions):
            own = {name: tuple(lines[line]) for name, lines in columns.items()}
            answers[self.members[line][0]].append(replace(completion, **own))
        pairs = zip(self.groups, answers, strict=True)
        return [replace(group, completions=tuple(own)) for group, own in pairs]

    def unpadded(self, values_BT: Tensor) -> list[list[float]]:
        """The values of each answer's tokens, as Python numbers."""
        pairs = zip(values_BT.tolist(), self.completions, strict=True)
        return [line[: len(completion.tokens)] for line, completion in pairs]


def make_batch(
    groups: Sequence[Group], *, mask_truncated: bool = False, max_tokens: int = 0
) -> Batch:
    """A rollout as one batch. Log-probs that the groups were stored with are taken over.

    With `mask_truncated`, answers that were cut off by the length limit `max_tokens` carry no loss.
    """
    completions = [completion for group in groups for completion in group.completions]
    counts_B = [not (mask_truncated and completion.truncated) for completion in completions]
    mask_BT = _sampled(completions) & torch.tensor(counts_B, dtype=torch.bool)[:, None]
    batch = Batch(
        mask_BT=mask_BT,
        share_BT=_shares(completions, mask_BT),
        advantages_BT=token_advantages(groups),
        denominator=Denominator(0, 0, max_tokens),
        sampler_logprobs_BT=_padded([completion.logprobs for completion in completions]),
        groups=tuple(groups),
        members=tuple((n, a) for n, g in enumerate(groups) for a in range(len(g.completions))),
    )
    for name in STORED:
        lines = [getattr(completion, name) for completion in completions]
        if lines and None not in lines:
            batch = replace(batch, **{f"{name}_BT": _padded(lines)})
    return batch.counted()


def minibatch_bounds(groups: int, minibatches: int) -> Iterator[tuple[int, int]]:
    """Where each optimizer step's run of neighbouring groups begins and ends."""
    return itertools.pairwise(round(i * groups / minibatches) for i in range(minibatches + 1))


def token_advantages(groups: Sequence[Group]) -> Tensor:
    """(B, T), an answer's number for each of its tokens; 0 where none were assigned."""
    values: list[Advantage] = []
    for group in groups:
        count = len(group.completions)
        values += group.advantages[:count] or [0.0] * count
    present_BT = _present([c.tokens for group in groups for c in group.completions])
    whole_B = torch.tensor([0.0 if isinstance(v, tuple) else v for v in values])
    advantages_BT = present_BT * whole_B[:, None]
    for line, value in enumerate(values):
        if isinstance(value, tuple):
            advantages_BT[line, : len(value)] = torch.tensor(value)
    return advantages_BT


def _present(lines: Sequence[Sequence[float]]) -> Tensor:
    """(B, T) bool: where lines of different lengths have something. At least one column."""
    lengths_B = torch.tensor([len(line) for line in lines], dtype=torch.long)
    width = max(1, int(lengths_B.max())) if len(lines) else 1
    return torch.arange(width) < lengths_B[:, None]


def _sampled(completions: Sequence[Completion]) -> Tensor:
    sampled_BT = _present([completion.tokens for completion in completions])
    for line, completion in enumerate(completions):
        if completion.sampled is not None:
            sampled_BT[line, : len(completion.sampled)] = torch.tensor(completion.sampled)
    return sampled_BT


def _shares(completions: Sequence[Completion], mask_BT: Tensor) -> Tensor | None:
    if not any(completion.segment for completion in completions):
        return None
    first_B = torch.tensor([completion.segment == 0 for completion in completions])
    tokens_B, episode_B = mask_BT.sum(1), first_B.cumsum(0) - 1
    total_E = torch.zeros(int(first_B.sum()), dtype=tokens_B.dtype)
    total_E.index_add_(0, episode_B, tokens_B)
    return (tokens_B / total_E[episode_B].clamp(min=1))[:, None]


def _padded(lines: Sequence[Sequence[float]]) -> Tensor:
    """Lines of different lengths as one tensor of at least one column; 0 behind their ends.

    One conversion for all of them: a tensor for each line would take ten times as long.
    """
    present_BT = _present(lines)
    padded_BT = torch.zeros(present_BT.shape)
    flat = torch.tensor(list(itertools.chain.from_iterable(lines)), dtype=torch.float32)
    padded_BT[present_BT] = flat
    return padded_BT
