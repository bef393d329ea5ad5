"""`log_completions`: the answers of the last rollout as a table on the screen."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from groupwise.tracking.console import console, prompt_text, visible
from groupwise.trl.config import GRPOConfig
from groupwise.types import Group


class AnswerTable:
    """What it shows is in the run's folder as well, for every step; `extra` has the columns that
    reward functions gave to `log_extra`."""

    def __init__(self, args: GRPOConfig) -> None:
        self.wanted, self.most = args.log_completions, args.num_completions_to_print
        self.unique = args.log_unique_prompts
        self.groups: Sequence[Group] = ()
        self.extra: dict[str, list[Any]] = {}
        self._coming: defaultdict[str, list[Any]] = defaultdict(list)
        self._shown = True

    def add_extra(self, column: str, values: Sequence[Any]) -> None:
        self._coming[column] += list(values)

    def keep(self, groups: Sequence[Group]) -> None:
        self.groups, self.extra, self._shown = groups, dict(self._coming), False
        self._coming.clear()

    def forget_extra(self) -> None:
        """An evaluation's: its answers are in no table."""
        self._coming.clear()

    def columns(self) -> dict[str, Any]:
        """By TRL's names, one value for each answer; rewards and `extra` by name."""
        names = self.groups[0].scores if self.groups else ()
        return {
            "prompt": [group.problem.prompt for group in self.groups for _ in group.completions],
            "completion": [c.text for group in self.groups for c in group.completions],
            "rewards": {
                name: [score for group in self.groups for score in group.scores[name]]
                for name in names
            },
            "advantages": [a for group in self.groups for a in group.advantages],
            "extra": self.extra,
        }

    def show(self, step: int) -> None:
        if not self.wanted or self._shown:
            return
        self._shown = True
        table = Table(title=f"Step {step}", show_lines=True)
        names = list(self.groups[0].scores)
        for name in ("prompt", "completion", *names, "advantage", *self.extra):
            table.add_column(name, overflow="fold")
        for cells in self._rows(names)[: self.most]:
            table.add_row(*cells)
        console.print(table, markup=False)

    def _rows(self, names: Sequence[str]) -> list[list[str]]:
        rows, number = [], 0
        for group in self.groups:
            for index, completion in enumerate(group.completions):
                scores = [_shown(group.scores[name][index]) for name in names]
                advantage = _shown(group.advantages[index] if group.advantages else None)
                extra = [
                    visible(str(v[number])) if number < len(v) else "" for v in self.extra.values()
                ]
                number += 1
                if not (self.unique and index):
                    texts = [visible(prompt_text(group.problem)), visible(completion.text)]
                    rows.append([*texts, *scores, advantage, *extra])
        return rows


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else "by token"
