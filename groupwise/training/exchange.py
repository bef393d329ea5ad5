"""What ranks tell each other about a step: rewards, lengths and sums.

Tokens and log-probs stay with the rank that learns from a group. They travel once where one rank
samples for all (to whoever learns from them), and to rank 0 when it writes them down.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from groupwise.batch import Batch, minibatch_bounds
from groupwise.distributed.world import World, even_shares
from groupwise.objective.advantages import GroupRewards
from groupwise.objective.assign import assign_advantages
from groupwise.objective.objective import Objective
from groupwise.rollout.groups import Prompted, Rollout
from groupwise.types import Group, Problem, group_from_json, to_json

Estimate = Callable[[GroupRewards], Tensor]


@dataclass
class Exchange:
    """Sends groups between ranks. All ranks have the problems, so only their ids are sent."""

    world: World
    problems: Sequence[Prompted]
    each_rank_samples: bool = True
    """Whether each rank samples its share of the groups; else rank 0 samples all of them."""

    def scatter(self, rollout: Rollout, minibatches: int) -> Rollout:
        """Distribute rank 0's rollout: each rank gets about as many tokens of an optimizer step."""
        if self.each_rank_samples:
            return rollout
        world = self.world
        shares: list[list[int]] = [[] for _ in range(world.size)]
        for first, last in minibatch_bounds(len(rollout.groups), minibatches):
            sizes = [token_count(group) for group in rollout.groups[first:last]]
            for share, own in zip(shares, even_shares(sizes, world.size), strict=True):
                share += [first + n for n in own]
        parts = [self._packed([(n, rollout.groups[n]) for n in share], rollout) for share in shares]
        return self._unpacked(world.scatter_from_first(parts if world.first else []))

    def gather(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The whole rollouts on rank 0, joined from the parts of all ranks; on others nothing.

        A rollout that rank 0 has whole already is not changed.
        """
        own = [
            self._packed(list(zip(r.group_indices, r.groups, strict=False)), r) for r in rollouts
        ]
        sizes = json.dumps([len(part) for part in own]).encode()
        received = self.world.gather_to_first(b"\n".join([sizes, b"".join(own)]))
        parts = [_split(data) for data in received]
        whole: list[Rollout] = []
        for number, first in enumerate(rollouts if self.world.first else ()):
            if not first.group_total:
                whole.append(first)
                continue
            theirs = [self._unpacked(part[number]) for part in parts if number < len(part)]
            placed = sorted(
                (pair for r in theirs for pair in zip(r.group_indices, r.groups, strict=True)),
                key=lambda pair: pair[0],
            )
            group_indices, groups = zip(*placed, strict=True) if placed else ((), ())
            whole.append(Rollout(list(groups), first.drawn, group_indices))
        return whole

    @cached_property
    def _by_id(self) -> dict[str, Problem]:
        return {problem.id: problem for problem, _ in self.problems}

    def _packed(self, placed: Sequence[tuple[int, Group]], rollout: Rollout) -> bytes:
        lines = [
            [index, to_json(replace(group, problem=Problem(group.problem.id, "")))]
            for index, group in placed
        ]
        again = [group.problem.occurrence for _, group in placed]
        total = rollout.group_total or len(rollout.groups)
        return zlib.compress(json.dumps([lines, again, rollout.drawn, total]).encode(), 1)

    def _unpacked(self, data: bytes) -> Rollout:
        lines, again, drawn, total = json.loads(zlib.decompress(data))
        groups = []
        for (_, line), occurrence in zip(lines, again, strict=True):
            group = group_from_json(line)
            problem = replace(self._by_id[group.problem.id], occurrence=occurrence)
            groups.append(replace(group, problem=problem))
        return Rollout(groups, drawn, tuple(index for index, _ in lines), total)


def _split(data: bytes) -> list[bytes]:
    sizes, _, rest = data.partition(b"\n")
    parts, start = [], 0
    for size in json.loads(sizes):
        parts.append(rest[start : start + size])
        start += size
    return parts


def own_share(rollout: Rollout, world: World) -> Rollout:
    """This rank's part of a rollout that each rank has whole: every `size`-th group."""
    if world.size == 1:
        return rollout
    group_indices = tuple(range(len(rollout.groups))[world.rank :: world.size])
    groups = [rollout.groups[index] for index in group_indices]
    return Rollout(groups, rollout.drawn, group_indices, len(rollout.groups))


def token_count(group: Group) -> int:
    """Tokens of a group, about proportional to what it costs to compute."""
    return len(group.prompt_tokens) + sum(len(c.tokens) for c in group.completions)


def assign_over_ranks(
    batch: Batch,
    objective: Objective,
    weights: Mapping[str, float],
    world: World,
    turn_weight: float | None = None,
) -> Batch:
    """`assign_advantages`, where other ranks have other groups of the step."""
    if world.size == 1:
        return assign_advantages(batch, objective, weights, turn_weight)
    estimate = _over_ranks(objective.advantage.estimate, world, batch.group_indices)
    if batch.groups:
        return assign_advantages(batch, objective, weights, turn_weight, estimate)
    estimate(GroupRewards(torch.zeros(0, 0, dtype=torch.float64), {}, weights))
    return batch


def _over_ranks(estimate: Estimate, world: World, group_indices: Sequence[int]) -> Estimate:
    """An estimator that computes advantages from the rewards of the whole step, and returns those
    of this rank's groups."""

    def estimate_own(rewards: GroupRewards) -> Tensor:
        penalty_NG = torch.zeros_like(rewards.total_NG) + rewards.penalty_NG
        tables = {"total": rewards.total_NG, "penalty": penalty_NG}
        tables |= {f"score {name}": scores for name, scores in rewards.scores_NG.items()}
        rows = {name: table.tolist() for name, table in tables.items()}
        own = [
            {name: column[n] for name, column in rows.items()} for n in range(len(group_indices))
        ]
        ranks = world.gather([[index, row] for index, row in zip(group_indices, own, strict=True)])
        placed = sorted((pair for part in ranks for pair in part), key=lambda pair: pair[0])
        whole: dict[str, Tensor] = {
            name: _padded([row[name] for _, row in placed]) for name in placed[0][1]
        }
        everyone = GroupRewards(
            total_NG=whole["total"],
            scores_NG={n[6:]: table for n, table in whole.items() if n.startswith("score ")},
            weights=rewards.weights,
            penalty_NG=whole["penalty"].nan_to_num(nan=0.0),
        )
        where = {index: n for n, (index, _) in enumerate(placed)}
        return estimate(everyone)[[where[index] for index in group_indices]]

    return estimate_own


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *[torch.nan] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.float64).reshape(len(rows), width)
