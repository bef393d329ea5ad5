"""Micro-batches: what goes through the model at once, and the packed rows that it reads.

In the shared-prefix layout a micro-batch is one row: prompts, each followed by its answers; an
answer sees its prompt and itself, and positions restart after the prompt, so a prompt is computed
once for its group and nothing is padded. In the padded layout one row is one answer. Both give the
same gradient.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.batch import Batch, OnDevice, make_batch
from groupwise.types import Completion, Group, Problem


@dataclass(frozen=True)
class Rows(OnDevice):
    """R rows of S tokens, and the K places whose hidden state predicts an answer's token."""

    tokens_RS: Tensor
    positions_RS: Tensor
    real_RS: Tensor
    """bool: false for padding."""
    groups: tuple[tuple[int, ...], ...] | None
    """Shared prefixes: the lengths of each prompt and its answers; policy/packed_attention.py."""
    source_K: Tensor
    """Index into the flattened rows of the hidden state that predicts token k."""
    target_K: Tensor
    """The token that it should predict."""
    slot_K: Tensor
    """Where token k stands in the flattened answers x tokens matrix."""
    shape_BT: tuple[int, int]
    temperature_K: Tensor | None = None
    """What token k was drawn at, where answers differ in that."""

    def scatter(self, values_K: Tensor) -> Tensor:
        """Values of predicted tokens, laid out as answers x tokens; 0 where there is no token."""
        rows, width = self.shape_BT
        flat = values_K.new_zeros(rows * width).index_put((self.slot_K,), values_K)
        return flat.view(rows, width)


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Batch):
    """A part of a batch. Without members it is blank: nobody's token, whose loss is 0."""

    rows: Rows


def microbatches(batch: Batch, layout: str, budget: int, pad_id: int = 0) -> Iterator[MicroBatch]:
    """The batch in parts of at most `budget` tokens."""
    line_of = {member: line for line, member in enumerate(batch.members)}
    for pieces in plan_microbatches(batch.groups, layout, budget):
        members = tuple((group, answer) for group, answers in pieces for answer in answers)
        width = max(1, *(len(batch.groups[g].completions[a].tokens) for g, a in members))
        part = replace(batch.cut([line_of[member] for member in members], width), members=members)
        rows = pack(batch.groups, pieces, layout, pad_id, width)
        yield MicroBatch(**vars(part), rows=rows)


def blank(layout: str, pad_id: int) -> MicroBatch:
    """A pass for a rank that has no work left while the others still do."""
    nobody = Group(Problem("", ""), (pad_id,), (Completion((pad_id,), (0.0,), "eos"),))
    (micro,) = microbatches(make_batch([nobody]), layout, 1, pad_id)
    return replace(micro, mask_BT=torch.zeros_like(micro.mask_BT), members=())


Piece = tuple[int, tuple[int, ...]]
"""A group's index, and the indices of its answers that are packed together."""


def plan_microbatches(groups: Sequence[Group], layout: str, budget: int) -> Iterator[list[Piece]]:
    """Cut groups into micro-batches of at most `budget` tokens, longest first.

    Padded rows of similar length travel together, so little is padded. A group is split only when
    it does not fit the budget; a single answer longer than that still goes through, alone.
    """
    sized = [(_length(groups, piece), piece) for piece in _pieces(groups, layout, budget)]
    sized.sort(key=lambda item: -item[0])
    while sized:
        if layout == "padded":
            count = budget // max(sized[0][0], 1)
        else:
            totals = itertools.accumulate(length for length, _ in sized)
            count = sum(1 for _ in itertools.takewhile(lambda total: total <= budget, totals))
        yield [piece for _, piece in sized[: max(1, count)]]
        sized = sized[max(1, count) :]


def _pieces(groups: Sequence[Group], layout: str, budget: int) -> Iterator[Piece]:
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
    """Tokens of an answer on a row: its last one is only ever predicted."""
    return max(len(completion.tokens) - 1, 0)


def _length(groups: Sequence[Group], piece: Piece) -> int:
    group = groups[piece[0]]
    return len(group.prompt_tokens) + sum(_read(group.completions[a]) for a in piece[1])


def pack(
    groups: Sequence[Group], pieces: Sequence[Piece], layout: str, pad_id: int, width: int
) -> Rows:
    """The rows of one micro-batch, whose answers have up to `width` tokens."""
    shared = layout == "shared_prefix"
    longest = max(_length(groups, piece) for piece in pieces)
    tokens: list[int] = []
    positions: list[int] = []
    source: list[int] = []
    packed: list[Completion] = []
    sizes: list[tuple[int, ...]] = []
    for index, answers in pieces:
        start, prompt = len(tokens), groups[index].prompt_tokens
        tokens += prompt
        positions += range(len(prompt))
        completions = [groups[index].completions[answer] for answer in answers]
        for completion in completions:
            places = [start + len(prompt) - 1, *range(len(tokens), len(tokens) + _read(completion))]
            source += places[: len(completion.tokens)]
            tokens += completion.tokens[:-1]
            positions += range(len(prompt), len(prompt) + _read(completion))
        packed += completions
        sizes.append((len(prompt), *map(_read, completions)))
        if not shared:
            padding = start + longest - len(tokens)
            tokens += [pad_id] * padding
            positions += [0] * padding
    rows = 1 if shared else len(pieces)
    lengths = torch.tensor([len(tokens) if shared else sum(size) for size in sizes[:rows]])
    drawn_at = [completion.temperature for completion in packed for _ in completion.tokens]
    slots = [line * width + t for line, c in enumerate(packed) for t in range(len(c.tokens))]
    return Rows(
        tokens_RS=torch.tensor(tokens).view(rows, -1),
        positions_RS=torch.tensor(positions).view(rows, -1),
        real_RS=torch.arange(len(tokens) // rows) < lengths[:, None],
        groups=tuple(sizes) if shared else None,
        source_K=torch.tensor(source, dtype=torch.long),
        target_K=torch.tensor([t for c in packed for t in c.tokens], dtype=torch.long),
        slot_K=torch.tensor(slots, dtype=torch.long),
        shape_BT=(len(packed), width),
        temperature_K=torch.tensor(drawn_at) if drawn_at and None not in drawn_at else None,
    )
