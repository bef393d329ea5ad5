"""Groups become tensors: packed rows for the model, answers x tokens for the objective.

Two views of the same answers. `Rows` is what the model reads. In the shared-prefix layout that is
one row: prompts, each followed by its answers; an answer sees its prompt and itself, and positions
restart after the prompt, so a prompt is computed once for its group and nothing is padded. In the
padded layout one row is one answer. `Microbatch` is what the objective reads: one line per answer,
padded to the longest.
`Rows.source_K` and `slot_K` connect them. Both layouts give the same gradient.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.objective.aggregate import Denominator
from groupwise.types import Completion, Group, Problem


@dataclass(frozen=True)
class Rows:
    """R rows of S tokens, and the K places whose hidden state predicts an answer's token."""

    tokens_RS: Tensor
    positions_RS: Tensor
    real_RS: Tensor
    """bool: false for padding."""
    groups: tuple[tuple[int, ...], ...] | None
    """Shared prefixes: the lengths of each prompt and its answers (policy/packed_attention.py)."""
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


@dataclass(frozen=True)
class Microbatch:
    """What goes through the model at once. The B answers belong to whole groups where they fit."""

    rows: Rows
    mask_BT: Tensor
    advantages_BT: Tensor
    sampler_logprobs_BT: Tensor
    old_logprobs_BT: Tensor | None
    ref_logprobs_BT: Tensor | None
    keep_BT: Tensor | None
    members: tuple[tuple[int, int], ...]
    """(group, answer) of each line, as indices into the groups it was made from."""


@dataclass(frozen=True)
class BatchPlan:
    """Everything that follows from the batch settings, derived once and shown by `check`."""

    prompts: int
    group_size: int
    minibatches: int
    epochs: int
    tokens_per_microbatch: int

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    @property
    def optimizer_steps(self) -> int:
        return self.minibatches * self.epochs

    @property
    def on_policy(self) -> bool:
        """One optimizer step per rollout: the ratio is 1, old log-probs need no pass."""
        return self.optimizer_steps == 1

    def describe(self) -> str:
        steps = self.optimizer_steps
        return (
            f"{self.prompts} prompts x {self.group_size} answers = {self.answers} answers a step, "
            f"{steps} optimizer step{'s' * (steps > 1)} "
            f"({self.minibatches} minibatches x {self.epochs} epochs), "
            f"at most {self.tokens_per_microbatch} tokens at once"
        )


def split_evenly(groups: Sequence[Group], parts: int) -> list[list[Group]]:
    """`parts` runs of neighbours whose sizes differ by at most one; nothing has to divide."""
    bounds = [round(i * len(groups) / parts) for i in range(parts + 1)]
    return [list(groups[a:b]) for a, b in itertools.pairwise(bounds)]


def denominator(groups: Sequence[Group], mask_truncated: bool, max_tokens: int) -> Denominator:
    """What the losses of one optimizer step are divided by, counted before any micro-batching."""
    tokens = sum(
        sum(completion.sampled) if completion.sampled is not None else len(completion.tokens)
        for group in groups
        for completion in group.completions
        if not (mask_truncated and completion.truncated)
    )
    answers = sum(len(group.completions) for group in groups)
    return Denominator(answers=answers, tokens=tokens, max_tokens=max_tokens)


def longest_row(groups: Sequence[Group]) -> int:
    """The longest prompt with one answer: the least that can go through the model at once."""
    return max(
        len(group.prompt_tokens) + max((len(c.tokens) for c in group.completions), default=0)
        for group in groups
    )


def microbatches(
    groups: Sequence[Group],
    *,
    layout: str,
    budget: int,
    mask_truncated: bool = False,
    keep_above: float | None = None,
    pad_id: int = 0,
) -> Iterator[Microbatch]:
    """Cut groups into micro-batches of at most `budget` tokens, longest first.

    Padded rows of similar length travel together, so little is padded. A group is split only when
    it does not fit the budget; a single answer longer than that still goes through, alone.
    """
    pieces = list(_pieces(groups, layout, budget))
    pieces.sort(key=lambda piece: -_length(groups, piece))
    lengths = [_length(groups, piece) for piece in pieces]
    first = 0
    while first < len(pieces):
        if layout == "padded":
            count = budget // max(lengths[first], 1)
        else:
            totals = itertools.accumulate(itertools.islice(lengths, first, None))
            count = sum(1 for _ in itertools.takewhile(lambda total: total <= budget, totals))
        last = first + max(1, count)
        chosen = pieces[first:last]
        yield _microbatch(groups, chosen, mask_truncated, keep_above, layout, pad_id)
        first = last


def blank(layout: str, pad_id: int) -> Microbatch:
    """Nobody's token: a pass for a rank that has no work left while the others still do."""
    nobody = Group(Problem("", ""), (pad_id,), (Completion((pad_id,), (0.0,), "eos"),))
    (micro,) = microbatches([nobody], layout=layout, budget=1, pad_id=pad_id)
    return replace(micro, mask_BT=torch.zeros_like(micro.mask_BT), members=())


def token_count(group: Group) -> int:
    """Tokens of a group: about what it costs to compute."""
    return len(group.prompt_tokens) + sum(len(c.tokens) for c in group.completions)


Piece = tuple[int, tuple[int, ...]]
"""A row to be: a group's index, and the indices of its answers that go on it."""


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


def _microbatch(
    groups: Sequence[Group],
    pieces: Sequence[Piece],
    mask_truncated: bool,
    keep_above: float | None,
    layout: str,
    pad_id: int,
) -> Microbatch:
    members = tuple((index, answer) for index, answers in pieces for answer in answers)
    completions = [groups[index].completions[answer] for index, answer in members]
    width = max(max(len(completion.tokens) for completion in completions), 1)

    def lines(values: Sequence[Sequence[float] | None]) -> Tensor | None:
        if any(line is None for line in values):
            return None
        padded = [list(line or ()) + [0.0] * (width - len(line or ())) for line in values]
        return torch.tensor(padded, dtype=torch.float32)

    mask = torch.zeros(len(members), width, dtype=torch.bool)
    for line, completion in enumerate(completions):
        if not (mask_truncated and completion.truncated):
            sampled = completion.sampled or (True,) * len(completion.tokens)
            mask[line, : len(sampled)] = torch.tensor(sampled, dtype=torch.bool)
    advantages = []
    for (index, answer), completion in zip(members, completions, strict=True):
        value = groups[index].advantages[answer] if groups[index].advantages else 0.0
        advantages.append(value if isinstance(value, tuple) else [value] * len(completion.tokens))
    sampler = lines([completion.logprobs for completion in completions])
    advantages_BT = lines(advantages)
    assert sampler is not None and advantages_BT is not None
    entropies = lines([completion.old_entropies for completion in completions])
    return Microbatch(
        rows=_rows(groups, pieces, layout, pad_id, width),
        mask_BT=mask,
        advantages_BT=advantages_BT,
        sampler_logprobs_BT=sampler,
        old_logprobs_BT=lines([completion.old_logprobs for completion in completions]),
        ref_logprobs_BT=lines([completion.ref_logprobs for completion in completions]),
        keep_BT=None if keep_above is None or entropies is None else entropies >= keep_above,
        members=members,
    )


def _rows(
    groups: Sequence[Group], pieces: Sequence[Piece], layout: str, pad_id: int, width: int
) -> Rows:
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


def to_device(micro: Microbatch, device: torch.device) -> Microbatch:
    def moved(item: object) -> object:
        return item.to(device, non_blocking=True) if isinstance(item, Tensor) else item

    rows = replace(micro.rows, **{k: moved(v) for k, v in vars(micro.rows).items()})
    rest = {k: moved(v) for k, v in vars(micro).items() if k != "rows"}
    return replace(micro, rows=rows, **rest)
