"""Micro-batches: what goes through the model at once, and the packed rows that it reads.

In the shared-prefix layout a micro-batch is one row: prompts, each followed by its answers; an
answer sees its prompt and itself, and positions restart after the prompt, so a prompt is computed
once for its group and nothing is padded. In the padded layout one row is one answer. Both give the
same gradient.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from groupwise.batch import Batch, OnDevice, make_batch
from groupwise.types import Completion, Group, Problem


@dataclass(frozen=True)
class Rows(OnDevice):
    """R rows of S tokens, and the K positions whose hidden state predicts an answer's token."""

    tokens_RS: Tensor
    positions_RS: Tensor
    real_RS: Tensor
    """bool: false for padding."""
    groups: tuple[tuple[int, ...], ...] | None
    """Shared prefixes: the lengths of each prompt and its answers; policy/packed_attention.py."""
    source_K: Tensor
    """Index of the hidden state that predicts token k, in the flattened rows."""
    target_K: Tensor
    """The token that it should predict."""
    slot_K: Tensor
    """Index of token k in the flattened answers x tokens matrix."""
    shape_BT: tuple[int, int]
    temperature_K: Tensor | None = None
    """The temperature that token k was drawn at, where answers have different ones."""

    def scatter(self, values_K: Tensor) -> Tensor:
        """Values of predicted tokens, laid out as answers x tokens; 0 where there is no token."""
        rows, width = self.shape_BT
        flat = values_K.new_zeros(rows * width).index_put((self.slot_K,), values_K)
        return flat.view(rows, width)


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Batch):
    """A part of a batch. One without members is a dummy: one token that belongs to no answer, and
    whose loss is 0."""

    rows: Rows


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of a batch. Each is packed when its turn comes, while a GPU still computes
    the one before."""

    batch: Batch
    layout: str
    pad_id: int
    planned: "tuple[tuple[GroupSlice, ...], ...]"
    """Of each micro-batch its groups and answers."""
    dummies: int = 0
    """Dummy micro-batches at the end, for a rank that has no work left while others still do."""

    def __len__(self) -> int:
        return len(self.planned) + self.dummies

    def __iter__(self) -> Iterator[MicroBatch]:
        batch = self.batch
        line_of = {member: line for line, member in enumerate(batch.members)}
        for slices in self.planned:
            members = tuple((group, answer) for group, answers in slices for answer in answers)
            width = max(1, *(len(batch.groups[g].completions[a].tokens) for g, a in members))
            part = batch.cut([line_of[member] for member in members], width)
            rows = pack(batch.groups, slices, self.layout, self.pad_id, width)
            yield MicroBatch(**vars(replace(part, members=members)), rows=rows)
        for _ in range(self.dummies):
            yield _dummy(self.layout, self.pad_id)


def microbatches(batch: Batch, layout: str, budget: int, pad_id: int = 0) -> MicroBatches:
    """The batch in parts of at most `budget` tokens."""
    planned = tuple(map(tuple, plan_microbatches(batch.groups, layout, budget)))
    return MicroBatches(batch, layout, pad_id, planned)


def _dummy(layout: str, pad_id: int) -> MicroBatch:
    nobody = Group(Problem("", ""), (pad_id,), (Completion((pad_id,), (0.0,), "eos"),))
    (micro,) = microbatches(make_batch([nobody]), layout, 1, pad_id)
    return replace(micro, mask_BT=torch.zeros_like(micro.mask_BT), members=())


GroupSlice = tuple[int, tuple[int, ...]]
"""A group's index, and the indices of those of its answers that are packed together."""


def plan_microbatches(
    groups: Sequence[Group], layout: str, budget: int
) -> Iterator[list[GroupSlice]]:
    """Cut groups into micro-batches of at most `budget` tokens, longest first.

    Padded rows of similar length travel together, so little is padded. A group is split only when
    it does not fit the budget; a single answer longer than that still goes through, alone.
    """
    sized = [(_length(groups, part), part) for part in _slices(groups, layout, budget)]
    sized.sort(key=lambda item: -item[0])
    while sized:
        if layout == "padded":
            count = budget // max(sized[0][0], 1)
        else:
            totals = itertools.accumulate(length for length, _ in sized)
            count = sum(1 for _ in itertools.takewhile(lambda total: total <= budget, totals))
        yield [part for _, part in sized[: max(1, count)]]
        sized = sized[max(1, count) :]


def _slices(groups: Sequence[Group], layout: str, budget: int) -> Iterator[GroupSlice]:
    for index, group in enumerate(groups):
        answers: tuple[int, ...] = ()
        length = len(group.prompt_tokens)
        for answer, completion in enumerate(group.completions):
            full = length + _read(completion) > budget
            if answers and (full or layout == "padded"):
                yield index, answers
                answers, length = (), len(group.prompt_tokens)
            answers += (answer,)
            length += _read(completion)
        if answers:
            yield index, answers


def _read(completion: Completion) -> int:
    """How many of an answer's tokens the model reads: the last one is only predicted."""
    return max(len(completion.tokens) - 1, 0)


def _length(groups: Sequence[Group], part: GroupSlice) -> int:
    group = groups[part[0]]
    return len(group.prompt_tokens) + sum(_read(group.completions[a]) for a in part[1])


def pack(
    groups: Sequence[Group], slices: Sequence[GroupSlice], layout: str, pad_id: int, width: int
) -> Rows:
    """The rows of one micro-batch, whose answers have up to `width` tokens."""
    shared = layout == "shared_prefix"
    longest = max(_length(groups, part) for part in slices)
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    source: list[np.ndarray] = []
    packed: list[Completion] = []
    sizes: list[tuple[int, ...]] = []
    count = 0
    for index, answers in slices:
        start, prompt = count, np.array(groups[index].prompt_tokens, dtype=np.int64)
        completions = [groups[index].completions[answer] for answer in answers]
        read = [_read(completion) for completion in completions]
        tokens.append(prompt)
        positions.append(np.arange(len(prompt)))
        count += len(prompt)
        for completion, length in zip(completions, read, strict=True):
            if completion.tokens:  # the prompt's last token predicts the first, each the next
                source += [np.array([start + len(prompt) - 1]), np.arange(count, count + length)]
            tokens.append(np.array(completion.tokens[:-1], dtype=np.int64))
            positions.append(np.arange(len(prompt), len(prompt) + length))
            count += length
        packed += completions
        sizes.append((len(prompt), *read))
        if not shared:
            padding = start + longest - count
            tokens.append(np.full(padding, pad_id))
            positions.append(np.zeros(padding, dtype=np.int64))
            count += padding
    rows = 1 if shared else len(slices)
    lengths = torch.tensor([count if shared else sum(size) for size in sizes[:rows]])
    drawn_at = [completion.temperature for completion in packed]
    slots = [line * width + np.arange(len(c.tokens)) for line, c in enumerate(packed)]
    return Rows(
        tokens_RS=_joined(tokens).view(rows, -1),
        positions_RS=_joined(positions).view(rows, -1),
        real_RS=torch.arange(count // rows) < lengths[:, None],
        groups=tuple(sizes) if shared else None,
        source_K=_joined(source),
        target_K=_joined([np.array(c.tokens, dtype=np.int64) for c in packed]),
        slot_K=_joined(slots),
        shape_BT=(len(packed), width),
        temperature_K=None if None in drawn_at else _temperatures(packed),
    )


def _joined(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64))


def _temperatures(completions: Sequence[Completion]) -> Tensor:
    each = [(c.temperature or 0.0, len(c.tokens)) for c in completions]
    return torch.cat([torch.full((length,), temperature) for temperature, length in each])
