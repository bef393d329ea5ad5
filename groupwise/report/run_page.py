"""report.html: a finished run on one page, to send to a colleague; from the run folder alone."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from groupwise.diagnose import diagnose_outcome
from groupwise.recipe import config_text, parse, read_yaml
from groupwise.report.conversation import answer_text, answer_tokens
from groupwise.report.curves import drawn, series
from groupwise.report.html import page
from groupwise.report.terminal import before_after_rows
from groupwise.tracking.run import read_metrics, read_summary, stored_groups, stored_steps
from groupwise.tracking.whole import write_whole

SHOWN_ANSWERS = 3
CURVES: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "rewards/*"),
    "validation": ("eval/accuracy", "eval/reward"),
    "tokens per answer": ("tokens",),
    "entropy, KL": ("entropy", "kl"),
    "no spread, cut off": ("no_spread", "truncated"),
    "turns, tool calls": ("episode/turns", "episode/calls", "episode/malformed"),
    "episodes": ("episode/turn_limit", "episode/failed", "episode/waiting", "episode/score/*"),
    "seconds a step": ("seconds", "seconds/generate", "seconds/update", "seconds/reward"),
}


def write_report(folder: pathlib.Path, summary: Mapping[str, Any] | None = None) -> pathlib.Path:
    """`folder`/report.html; `summary` where summary.json is not written yet."""
    target = folder / "report.html"
    write_whole(target, report_page(folder, summary))
    return target


def report_page(folder: pathlib.Path, summary: Mapping[str, Any] | None = None) -> str:
    config = parse(read_yaml(folder / "config.yaml"))
    metrics = read_metrics(folder)
    summary = (summary if summary is not None else read_summary(folder)) or {}
    before, after = summary.get("before") or {}, summary.get("after") or {}
    return page(
        "report/run.html",
        name=folder.resolve().name,
        config=config,
        settings=config_text(config),
        status=summary.get("status", "not finished"),
        steps=len(metrics),
        seconds=summary.get("seconds", sum(row.get("seconds", 0) for row in metrics)),
        before_after=before_after_rows(before, after),
        problems=after.get("problems", 0),
        findings=diagnose_outcome(metrics, before, after, config),
        curves=_curves(metrics, before),
        answer_text=answer_text,
        answer_tokens=answer_tokens,
        **_last_answers(folder),
    )


def _curves(metrics: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> Markup | None:
    panels = {title: series(metrics, names, before) for title, names in CURVES.items()}
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels:
        return None
    text = drawn(panels, "svg").decode()
    return Markup(text[text.index("<svg") :])


def _last_answers(folder: pathlib.Path) -> dict[str, Any]:
    """The best and the worst answers of the last stored step, each to another problem."""
    steps = stored_steps(folder)
    if not steps:
        return {"answers": None}
    groups = stored_groups(folder, steps[-1])
    ranked = sorted(
        (reward, g, a)
        for g, group in enumerate(groups)
        for a, reward in enumerate(group.rewards)
        if reward is not None
    )
    lowest = sorted({g: (reward, g, a) for reward, g, a in reversed(ranked)}.values())
    highest = sorted({g: (reward, g, a) for reward, g, a in ranked}.values(), reverse=True)
    answers = {
        title: [(reward, groups[g], a) for reward, g, a in chosen[:SHOWN_ANSWERS]]
        for title, chosen in (("Best", highest), ("Worst", lowest))
    }
    return {"answers": answers, "step": steps[-1]}
