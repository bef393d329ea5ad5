"""`groupwise reward bench`: does any wrong answer earn more than a right one?

A policy finds whatever a reward pays for, so it is better to know before training. The bench writes
the fixed set of answers in groupwise.rewards.adversaries to some problems of the recipe's task,
scores them with the recipe's rewards and weights, and compares within each problem. A flaw is a
wrong answer with a higher reward than a right and worked one; a tie is shown and is none, since
rewards that do not know the truth cannot tell. A reward that fails on one of the answers has a
flaw too: training would stop there.

The form of a right answer (tags, \\boxed{}, ...) is the one that the rewards value most among those
in which the task's own judge knows it to be right.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from groupwise.errors import RewardError, quoted
from groupwise.rewards.adversaries import (
    FORMS,
    Candidate,
    candidates,
    in_form,
    worked,
    wrong_answer,
)
from groupwise.rewards.base import weighted
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem

PROBLEMS = 8
LEARNED_PROBLEMS = 2
LEARNED_SECONDS = 600.0
"""Of rewards that are models: fewer problems, and a time limit for all answers to one."""

_TIE = 1e-9


@dataclass(frozen=True)
class Solved:
    """A problem, a right final answer to it and a wrong one."""

    problem: Problem
    right: str
    wrong: str


@dataclass(frozen=True)
class AnswerLine:
    """One kind of answer: mean scores and reward, and how often it beats or ties a right one."""

    kind: str
    label: str
    scores: dict[str, float | None]
    reward: float | None
    answers: int
    beats: int
    ties: int


@dataclass(frozen=True)
class Flaw:
    """A wrong answer that earned more than the least of the right ones."""

    kind: str
    problem: str
    reward: float
    right_reward: float
    text: str


@dataclass(frozen=True)
class RewardReport:
    form: str
    problems: int
    lines: tuple[AnswerLine, ...]
    flaws: tuple[Flaw, ...]
    errors: int
    """Answers on which a reward failed."""

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def check(self) -> None:
        """Raises RewardError if there is a flaw."""
        if self.errors:
            raise RewardError(
                f"rewards failed on {self.errors} of the bench's answers (see above): they would "
                "stop a run that meets such text"
            )
        if self.flaws:
            kinds = ", ".join(dict.fromkeys(flaw.kind for flaw in self.flaws))
            raise RewardError(
                f"{len(self.flaws)} wrong answers beat a right one ({kinds}): the policy will find "
                "them too. Make the reward stricter, or give `correct` more weight"
            )


def run_bench(solved: Sequence[Solved], scorer: Scorer, judge: Scorer) -> RewardReport:
    """Score the whole set for every problem. `judge` holds the task's own judges."""
    solved = _judged_right_and_wrong(solved, judge)
    form = _best_form(solved, scorer, judge)
    written = [
        (item, candidate)
        for item in solved
        for candidate in candidates(item.problem, form, item.right, item.wrong)
    ]
    errors = scorer.errors
    scores = scorer.score(
        [item.problem for item, _ in written], [candidate.text for _, candidate in written]
    )
    totals = weighted(scores, {reward.name: reward.weight for reward in scorer.rewards})
    least: dict[str, float] = {}
    for (item, candidate), total in zip(written, totals, strict=True):
        if candidate.label == "right" and total is not None:
            least[item.problem.id] = min(total, least.get(item.problem.id, total))
    margins = [
        None if total is None or item.problem.id not in least else total - least[item.problem.id]
        for (item, _), total in zip(written, totals, strict=True)
    ]
    flaws = [
        Flaw(candidate.kind, item.problem.id, total, least[item.problem.id], candidate.text)
        for (item, candidate), total, margin in zip(written, totals, margins, strict=True)
        if candidate.label == "wrong" and total is not None and margin is not None and margin > _TIE
    ]
    lines = _lines([candidate for _, candidate in written], scores, totals, margins)
    return RewardReport(form, len(solved), lines, tuple(flaws), scorer.errors - errors)


def solve_problems(
    problems: Sequence[Problem], solve: Any = None, count: int = PROBLEMS
) -> list[Solved]:
    """Up to `count` problems with a right answer and a wrong one; RewardError if there are none."""
    solved: list[Solved] = []
    for problem in problems:
        right = solve(problem) if solve is not None else problem.columns.get("answer")
        if right is not None and str(right).strip():
            options = problem.columns.get("options", ())
            wrong = wrong_answer(str(right).strip(), options if isinstance(options, list) else ())
            solved.append(Solved(problem, str(right).strip(), wrong))
        if len(solved) == count:
            break
    if not solved:
        raise RewardError(
            "the bench writes right and wrong answers, and this task tells no right ones: its "
            "problems need a column `answer`, or the task a `solve` function"
        )
    return solved


def bench_table(report: RewardReport, title: str) -> Table:
    heading = f"{title} ({report.problems} problems, form: {report.form})"
    table = Table(title=escape(heading))
    for name in ("answer", ""):
        table.add_column(name)
    names = list(report.lines[0].scores)
    for name in (*names, "reward", "beats right"):
        table.add_column(escape(name), justify="right")
    for line in report.lines:
        numbers = [line.scores[name] for name in names]
        verdict = f"[bold red]{line.beats} of {line.answers}[/]" if line.beats else ""
        if not line.beats and line.ties and line.label == "wrong":
            verdict = "tie" if line.ties == line.answers else f"{line.ties} ties"
        table.add_row(line.kind, line.label, *map(shown, (*numbers, line.reward)), verdict)
    return table


def flaw_lines(report: RewardReport) -> list[str]:
    """The first few flaws in words, with the text that did it."""
    return [
        f"{flaw.kind}: {flaw.reward:.3f} against {flaw.right_reward:.3f} on {flaw.problem}: "
        f"{quoted(flaw.text)}"
        for flaw in report.flaws[:5]
    ]


def _judged_right_and_wrong(solved: Sequence[Solved], judge: Scorer) -> list[Solved]:
    """Those whose wrong answer the task's judge does not take for right: some have many answers."""
    if not any(reward.name == "correct" for reward in judge.rewards):
        return list(solved)
    texts = [in_form(form, worked(s.wrong), s.wrong) for s in solved for form in FORMS]
    verdicts = judge.score([s.problem for s in solved for _ in FORMS], texts)["correct"]
    size = len(FORMS)
    kept = [
        item
        for index, item in enumerate(solved)
        if not any(verdicts[index * size : (index + 1) * size])
    ]
    if not kept:
        raise RewardError(
            "the task's own judge accepts every answer of the bench, the wrong ones too: "
            "its `correct` function does not tell right from wrong"
        )
    return kept


def _best_form(solved: Sequence[Solved], scorer: Scorer, judge: Scorer) -> str:
    problems = [item.problem for item in solved for _ in FORMS]
    texts = [
        in_form(form, worked(item.right), item.right, item.problem.prefill)
        for item in solved
        for form in FORMS
    ]
    verdicts = judge.score(problems, texts)
    totals = weighted(
        scorer.score(problems, texts), {reward.name: reward.weight for reward in scorer.rewards}
    )

    def worth(position: int) -> tuple[bool, float, float]:
        at = slice(position, None, len(FORMS))
        known = all(verdicts["correct"][at]) if "correct" in verdicts else True
        formatted = sum(score or 0.0 for score in verdicts["format"][at])
        return known, sum(total or 0.0 for total in totals[at]), formatted

    ranked = {form: worth(position) for position, form in enumerate(FORMS)}
    form = max(ranked, key=lambda name: ranked[name])
    if not ranked[form][0]:
        raise RewardError(
            "the task's own judge accepts none of the bench's right answers, in any of the forms "
            f"{', '.join(FORMS)}"
        )
    return form


def _lines(
    written: Sequence[Candidate],
    scores: dict[str, list[float | None]],
    totals: Sequence[float | None],
    margins: Sequence[float | None],
) -> tuple[AnswerLine, ...]:
    indices: dict[tuple[str, str], list[int]] = {}
    for index, candidate in enumerate(written):
        indices.setdefault((candidate.label, candidate.kind), []).append(index)
    lines = []
    for (label, kind), at in indices.items():
        known = [margin for i in at if (margin := margins[i]) is not None]
        lines.append(
            AnswerLine(
                kind,
                label,
                {name: mean_of_known(values[i] for i in at) for name, values in scores.items()},
                mean_of_known(totals[i] for i in at),
                len(at),
                sum(margin > _TIE for margin in known) if label == "wrong" else 0,
                sum(abs(margin) <= _TIE for margin in known),
            )
        )
    return tuple(lines)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
