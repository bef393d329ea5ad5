"""report.html: a finished run on one page, to send to a colleague. Made from the run folder alone.

Curves are drawn by matplotlib as SVG inside the page, in greys and mid tones that are readable on
a light and on a dark ground.
"""

import io
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from groupwise.config import Config
from groupwise.diagnose import Finding, diagnose
from groupwise.recipe import parse, read_yaml
from groupwise.secrets import without_secrets
from groupwise.tracking.html_page import page, shown, table, text_block
from groupwise.tracking.report import before_after_rows
from groupwise.tracking.run import read_metrics, read_rollouts, read_summary
from groupwise.types import Group, group_from_json

SHOWN_ANSWERS = 3
POINTS = 500
CURVES: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "rewards/*"),
    "held-out": ("eval/accuracy", "eval/reward"),
    "tokens per answer": ("tokens",),
    "entropy, KL": ("entropy", "kl"),
    "no spread, cut off": ("no_spread", "truncated"),
    "seconds a step": ("seconds", "seconds/generate", "seconds/update", "seconds/reward"),
}
COLOURS = ("#3b82c4", "#d9822b", "#3fa46a", "#a46ac4", "#c45a5a", "#8a8a8a")


def write_report(folder: pathlib.Path, summary: Mapping[str, Any] | None = None) -> pathlib.Path:
    """`folder`/report.html; `summary` where summary.json is not written yet."""
    target = folder / "report.html"
    aside = folder / "report.html.new"
    aside.write_text(report_page(folder, summary), encoding="utf-8")
    os.replace(aside, target)
    return target


def report_page(folder: pathlib.Path, summary: Mapping[str, Any] | None = None) -> str:
    config = parse(read_yaml(folder / "config.yaml"))
    metrics = read_metrics(folder)
    found = summary if summary is not None else read_summary(folder)
    return page(
        f"{folder.resolve().name}: {config.model} on {config.task.kind}",
        [
            *_head(folder, config, metrics, found),
            *_before_and_after(found),
            *_findings(diagnose(metrics, config)),
            *_curves(metrics),
            *_answers(folder),
            "<h2>Settings</h2>",
            f"<details><summary>config.yaml, every setting</summary>{_settings(config)}</details>",
        ],
    )


def _head(
    folder: pathlib.Path,
    config: Config,
    metrics: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
) -> Iterator[str]:
    steps = len(metrics)
    seconds = summary["seconds"] if summary else sum(row.get("seconds", 0) for row in metrics)
    status = summary["status"] if summary else "not finished"
    rewards = ", ".join(f"{reward.name} × {reward.weight:g}" for reward in config.rewards)
    yield f"<h1>{shown(config.model)} on {shown(config.task.kind)}</h1>"
    yield (
        f'<p class="soft">Run {shown(folder.resolve().name)}: {shown(status)}, {steps} of '
        f"{config.steps} steps in {seconds:,.0f} s, {config.batch.prompts} problems × "
        f"{config.batch.group_size} answers a step, algorithm {shown(config.algorithm.preset)}, "
        f"learning rate {config.optimizer.lr:g}, rewards {shown(rewards)}, seed {config.seed}.</p>"
    )


def _before_and_after(summary: Mapping[str, Any] | None) -> Iterator[str]:
    if not summary or not summary.get("before") or not summary.get("after"):
        return
    rows = before_after_rows(summary["before"], summary["after"])
    count = summary["after"].get("problems", 0)
    yield f"<h2>Before and after, on {count:.0f} held-out problems</h2>"
    yield table(
        ("", "before", "after", "change"),
        [tuple(shown(cell) for cell in row) for row in rows],
        numbers=(1, 2, 3),
    )


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "<h2>Diagnosis</h2>"
    if not findings:
        yield "<p>Nothing stands out.</p>"
    kinds = {"error": "bad", "warning": "warn", "info": "soft"}
    for finding in findings:
        yield (
            f'<p><strong class="{kinds[finding.severity]}">{shown(finding.title)}</strong> '
            f'<span class="soft">since step {finding.step}</span><br>{shown(finding.evidence)}.<br>'
            f"Try: {shown(finding.advice)}.</p>"
        )


def _curves(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "<h2>Curves</h2>"
    panels = {title: _series(metrics, names) for title, names in CURVES.items()}
    panels = {title: series for title, series in panels.items() if series}
    yield _drawn(panels) if panels else "<p>No steps yet.</p>"


Series = dict[str, list[tuple[float, float]]]


def _series(metrics: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Series:
    """The points of each named metric; "rewards/*" stands for all rewards."""
    series: Series = {}
    for row in metrics:
        for name, value in row.items():
            wanted = name in names or any(n[-1] == "*" and name.startswith(n[:-1]) for n in names)
            if wanted and isinstance(value, int | float):
                series.setdefault(name, []).append((row["step"], value))
    return {name: _thinned(points) for name, points in series.items()}


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points, each the mean of its neighbours."""
    size = -(-len(points) // POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]


def _drawn(panels: Mapping[str, Series]) -> str:
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: a notebook's own plots stay as they are

    grey = "#8a8f99"
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "groupwise",
        "text.color": grey,
        "axes.labelcolor": grey,
        "axes.edgecolor": grey,
        "xtick.color": grey,
        "ytick.color": grey,
        "font.size": 9,
    }
    with matplotlib.rc_context(settings):
        lines = -(-len(panels) // 2)
        figure = Figure(figsize=(10, 2.7 * lines))
        axes = figure.subplots(lines, 2, squeeze=False)
        for spare in axes.flat[len(panels) :]:
            spare.remove()
        for axis, (title, series) in zip(axes.flat, panels.items(), strict=False):
            for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
                label = name.removeprefix("seconds/").removeprefix("rewards/").lstrip("_")
                marker = "o" if name.startswith("eval/") else ""
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3,
                          linewidth=1.3, label=label[:24].replace("$", r"\$"))  # fmt: skip
            axis.set_title(title, loc="right")
            axis.grid(alpha=0.25)
            axis.locator_params(nbins=5)
            above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.97), "ncols": 3}
            axis.legend(framealpha=0, fontsize=8, handlelength=1, columnspacing=1, **above)
        figure.subplots_adjust(0.06, 0.05, 0.98, 0.95, wspace=0.16, hspace=0.32)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _answers(folder: pathlib.Path) -> Iterator[str]:
    """The best and the worst answers of the last stored step, each to another problem."""
    stored = sorted((folder / "rollouts").glob("step-??????.jsonl.gz"))
    if not stored:
        return
    step = int(stored[-1].name[5:11])
    groups = [group_from_json(group) for group in read_rollouts(stored[-1])]
    ranked = sorted(
        (reward, g, a)
        for g, group in enumerate(groups)
        for a, reward in enumerate(group.rewards)
        if reward is not None
    )
    lowest = {g: (reward, g, a) for reward, g, a in reversed(ranked)}
    highest = {g: (reward, g, a) for reward, g, a in ranked}
    worst = sorted(lowest.values())[:SHOWN_ANSWERS]
    best = sorted(highest.values(), reverse=True)[:SHOWN_ANSWERS]
    yield f"<h2>Answers of step {step}</h2>"
    for title, chosen in (("Best", best), ("Worst", worst)):
        yield f"<h3>{title}</h3>"
        rows = [_answer(groups[g], a, reward) for reward, g, a in chosen]
        yield table(("question", "answer", "reward"), rows, numbers=(2,))


def _answer(group: Group, answer: int, reward: float) -> tuple[str, str, str]:
    completion = group.completions[answer]
    prompt = group.problem.prompt
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"] if prompt else ""
    parts = ", ".join(
        f"{shown(name)} {'–' if values[answer] is None else f'{values[answer]:.3g}'}"
        for name, values in group.scores.items()
    )
    return (
        text_block(question, 2000),
        text_block(completion.text, 2000),
        f'{reward:.3f}<br><span class="soft">{parts}<br>{len(completion.tokens)} tokens, '
        f"{shown(completion.stop)}</span>",
    )


def _settings(config: Config) -> str:
    settings = without_secrets(config.model_dump(mode="json"))
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return f"<pre>{shown(text, 100_000)}</pre>"
