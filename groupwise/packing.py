"""Packed rows: what the model reads of a micro-batch.

In the shared-prefix layout a micro-batch is one row: prompts, each followed by its answers; an
answer sees its prompt and itself, and positions restart after the prompt, so a prompt is computed
once for its group and nothing is padded. In the padded layout one row is one answer. Both give the
same gradient.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.types import Group


@dataclass(frozen=True)
class Rows:
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
        return (
            values_K.new_zeros(rows * width).index_put((self.slot_K,), values_K).view(rows, width)
        )


Piece = tuple[int, tuple[int, ...]]
"""A group's index, and the indices of its answers that are packed together."""


def plan_microbatches(groups: Sequence[Group], layout: str, budget: int) -> Iterator[list[Piece]]:
    """Cut groups into micro-batches of at most `budget` tokens, longest first.

    Padded rows of similar length travel together, so little is padded. A group is split only when
    it does not fit the budget; a single answer longer than that still goes through, alone.
    """
    pieces = sorted(_pieces(groups, layout, budget), key=lambda piece: -_length(groups, piece))
    lengths = [_length(groups, piece) for piece in pieces]
    first = 0
    while first < len(pieces):
        if layout == "padded":
            count = budget // max(lengths[first], 1)
        else:
            totals = itertools.accumulate(itertools.islice(lengths, first, None))
            count = sum(1 for _ in itertools.takewhile(lambda total: total <= budget, totals))
        last = first + max(1, count)
        yield pieces[first:last]
        first = last


def _pieces(groups: Sequence[Group], layout: str, budget: int) -> Iterator[Piece]:
    for index, group in enumerate(groups):
        if layout == "padded":
            yield from ((index, (answer,)) for answer in range(len(group.completions)))
            continue
        members: list[int] = []
        length = len(group.prompt_tokens)
        for answer, completion in enumerate(group.completions):
            extra = max(len(completion.tokens) - 1, 0)
            if members and length + extra > budget:
                yield index, tuple(members)
                members, length = [], len(group.prompt_tokens)
            members.append(answer)
            length += extra
        if members:
            yield index, tuple(members)


def _length(groups: Sequence[Group], piece: Piece) -> int:
    """Tokens on a row. An answer's last token is only ever predicted, so it is not on the row."""
    group = groups[piece[0]]
    answers = sum(max(len(group.completions[answer].tokens) - 1, 0) for answer in piece[1])
    return len(group.prompt_tokens) + answers


def pack(
    groups: Sequence[Group], pieces: Sequence[Piece], layout: str, pad_id: int, width: int
) -> Rows:
    """The rows of one micro-batch, whose answers have up to `width` tokens."""
    shared = layout == "shared_prefix"
    lengths = [_length(groups, piece) for piece in pieces]
    shape = (1, sum(lengths)) if shared else (len(pieces), max(lengths))
    tokens = torch.full(shape, pad_id)
    positions = torch.zeros(shape, dtype=torch.long)
    real = torch.zeros(shape, dtype=torch.bool)
    flat_tokens, flat_positions, flat_real = tokens.view(-1), positions.view(-1), real.view(-1)
    source: list[int] = []
    target: list[int] = []
    slot: list[int] = []
    temperatures: list[float | None] = []
    sizes: list[tuple[int, ...]] = []
    line = at = 0
    for row, (index, answers) in enumerate(pieces):
        group = groups[index]
        at = at if shared else row * shape[1]
        start, prompt = at, len(group.prompt_tokens)
        read = [list(group.prompt_tokens)]
        for answer in answers:
            completion = group.completions[answer].tokens
            read.append(list(completion[:-1]))  # the last token is predicted and never read
            behind = start + sum(map(len, read[:-1]))
            places = [start + prompt - 1, *range(behind, behind + len(read[-1]))]
            source += places[: len(completion)]
            target += completion
            temperatures += [group.completions[answer].temperature] * len(completion)
            slot += [line * width + k for k in range(len(completion))]
            line += 1
        at = start + sum(map(len, read))
        flat_tokens[start:at] = torch.tensor([token for part in read for token in part])
        behind_prompt = [prompt + n for part in read[1:] for n in range(len(part))]
        flat_positions[start:at] = torch.tensor([*range(prompt), *behind_prompt])
        flat_real[start:at] = True
        sizes.append(tuple(map(len, read)))
    return Rows(
        tokens_RS=tokens,
        positions_RS=positions,
        real_RS=real,
        groups=tuple(sizes) if shared else None,
        source_K=torch.tensor(source, dtype=torch.long),
        target_K=torch.tensor(target, dtype=torch.long),
        slot_K=torch.tensor(slot, dtype=torch.long),
        shape_BT=(line, width),
        temperature_K=torch.tensor(temperatures)
        if temperatures and None not in temperatures
        else None,
    )
