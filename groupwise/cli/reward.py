"""groupwise reward ...: rewards and reward models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from groupwise.cli import options
from groupwise.cli.app import choose, config_for, reward_app
from groupwise.errors import ConfigError


@reward_app.command("bench")
def reward_bench(
    words: options.Words = None,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
    json_file: options.JsonFile = None,
    trust_code: options.TrustCode = False,
) -> None:
    """Try right, wrong, broken and gaming answers on a recipe's rewards. Exit code 2: a flaw.

    groupwise reward bench demo --json bench.json
    """
    chosen = choose(words, preset, tiny, trust_code)
    config = chosen.config
    from groupwise.load import find_rewards, judges
    from groupwise.reward_models.reward import PREFIX
    from groupwise.rewards.bench import (
        LEARNED_PROBLEMS,
        LEARNED_SECONDS,
        PROBLEMS,
        bench_table,
        flaw_lines,
        run_bench,
        solve_problems,
    )
    from groupwise.rewards.scorer import Scorer
    from groupwise.tasks.catalog import build_task
    from groupwise.tracking.console import console

    task = build_task(config.task)
    learned = any(reward.name.startswith(PREFIX) for reward in config.rewards)
    # A model that compares every pair of answers to a problem takes minutes on a CPU.
    seconds = max(config.reward_timeout, LEARNED_SECONDS) if learned else config.reward_timeout
    problems = solve_problems(task.train, task.solve, LEARNED_PROBLEMS if learned else PROBLEMS)
    own = Scorer(find_rewards(config, task), seconds, "skip")
    with own, Scorer(judges(task), config.reward_timeout, "stop") as judge:
        report = run_bench(problems, own, judge)
    console.print(bench_table(report, f"rewards of {chosen.title}"))
    for line in flaw_lines(report):
        console.print(line, markup=False, highlight=False)
    options.write_json(json_file, report.json())
    report.check()
    typer.echo("no wrong answer beats a right one")


Model = Annotated[str, typer.Argument(help="A folder that `fit` wrote, or a hub id.")]
Data = Annotated[str, typer.Argument(help="A run folder, or JSON Lines.")]
BatchSize = Annotated[int, typer.Option(help="Answers computed at once.", min=1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


@reward_app.command("fit")
def reward_fit(
    data: Data,
    out: Annotated[str, typer.Option(help="A new folder for the model and its report.json.")],
    kind: Annotated[str, typer.Option(help="scalar, cot or preference.")] = "scalar",
    base: Annotated[
        str, typer.Option(help="A model to start from, or tiny-encoder: from scratch.")
    ] = "tiny-encoder",
    tokenizer: Annotated[
        str | None,
        typer.Option(help="tiny-encoder: whose tokens it reads.", show_default="the run's"),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longer texts are cut.", min=16)] = None,
    validation: Annotated[float, typer.Option(help="Share of problems for validation.")] = 0.15,
    epochs: Annotated[int, typer.Option(help="At most.", min=1)] = 10,
    batch_size: BatchSize = 32,
    lr: Annotated[
        float | None, typer.Option(help="Default: 0.002 from scratch, 0.00002 otherwise.")
    ] = None,
    patience: Annotated[int, typer.Option(help="Epochs without progress, then stop.", min=1)] = 3,
    seed: Annotated[int, typer.Option()] = 0,
    device: Device = "auto",
    trust_code: options.TrustCode = False,
) -> None:
    """Fit a reward model: on a run's answers, judged by its task, or on JSON Lines.

    groupwise reward fit runs/demo --out runs/rm

    groupwise reward fit pairs.jsonl --kind preference --base bert-base-uncased --out runs/rm
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from groupwise.report.terminal import metrics_table
    from groupwise.reward_models.api import FitPlan, checked_kind, fit_to_folder
    from groupwise.tracking.console import console

    plan = FitPlan(
        data, checked_kind(kind), base, tokenizer, max_tokens, validation, epochs, batch_size, lr,
        patience, seed, device,
    )  # fmt: skip
    columns = ("fitting", BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        report = fit_to_folder(
            plan,
            out,
            lambda share, line: bar.update(task, completed=share, description=line),
            trust_code=trust_code,
        )
    shown = {name: report[name] for name in ("auc", "ece", "best_epoch")}
    title = f"{kind} reward model on {report['validation_problems']} validation problems"
    console.print(metrics_table({"judged right": report["accuracy"], **shown}, title))
    console.print(calibration_table(report["calibration"]))
    typer.echo(f'{out}: use it in a recipe as  rewards: [{{name: "model:{out}"}}]')


@reward_app.command("score")
def reward_score(
    model: Model,
    data: Annotated[str, typer.Argument(help='JSON Lines of {"prompt", "completion"}.')],
    out: Annotated[str, typer.Option(help="The same lines, each with its score.")],
    batch_size: BatchSize = 32,
    device: Device = "auto",
) -> None:
    """Score answers with a reward model.

    groupwise reward score runs/rm answers.jsonl --out scored.jsonl
    """
    from groupwise.reward_models.api import score_file

    count = score_file(model, data, out, batch_size=batch_size, device=device)
    typer.echo(f"{out}: {count} answers scored")


@reward_app.command("eval")
def reward_eval(
    model: Model,
    data: Data,
    json_file: options.JsonFile = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    trust_code: options.TrustCode = False,
) -> None:
    """Accuracy, AUC and calibration of a reward model on labelled answers or pairs.

    groupwise reward eval runs/rm runs/demo
    """
    from groupwise.report.terminal import metrics_table
    from groupwise.reward_models.api import eval_on
    from groupwise.tracking.console import console

    quality = eval_on(model, data, batch_size=batch_size, device=device, trust_code=trust_code)
    measured = asdict(quality)
    shown = {name: measured[name] for name in ("auc", "ece", "count")}
    title = f"{model} on {data}"
    console.print(metrics_table({"judged right": measured["accuracy"], **shown}, title))
    console.print(calibration_table(measured["calibration"]))
    options.write_json(json_file, measured)


@reward_app.command("pairs")
def reward_pairs(
    model: options.Model,
    overrides: options.Overrides = None,
    *,
    out: Annotated[str, typer.Option(help='JSON Lines of {"prompt", "chosen", "rejected"}.')],
    problems: Annotated[int, typer.Option(help="Training problems to sample for.", min=1)] = 256,
    pairs: Annotated[int, typer.Option(help="Pairs per problem.", min=1)] = 4,
    temperatures: Annotated[str, typer.Option(help="Lowest and highest.")] = "0.7,1.3",
    label: Annotated[str, typer.Option(help="correct (the verifier) or rewards.")] = "correct",
    task: options.Task = None,
    data: options.Data = None,
    trust_code: options.TrustCode = False,
) -> None:
    """Sample pairs of answers at spread temperatures, and tell which is better.

    groupwise reward pairs runs/demo --out pairs.jsonl --problems 64
    """
    config = config_for(model, task, data, overrides or [], trust_code=trust_code)
    low, _, high = temperatures.partition(",")
    try:
        spread = float(low), float(high or low)
    except ValueError:
        raise ConfigError(f"--temperatures is {temperatures!r}; write it as 0.7,1.3") from None
    from groupwise.samples.pairs import write_pairs

    count = write_pairs(
        config, out, problems=problems, pairs=pairs, temperatures=spread, label=label
    )
    typer.echo(
        f"{out}: {count.written} pairs from {count.problems} problems, {count.ties} ties left out"
    )


def calibration_table(bins: Sequence[Mapping[str, Any]]) -> Any:
    """Predicted against observed: where they differ, the model is too sure or not sure enough."""
    from rich.table import Table

    table = Table(title="calibration")
    for name in ("from", "to", "answers", "predicted", "observed"):
        table.add_column(name, justify="right")
    for line in bins:
        numbers = [line["low"], line["high"], line["predicted"], line["observed"]]
        low, high, predicted, observed = (f"{number:.2f}" for number in numbers)
        table.add_row(low, high, str(line["count"]), predicted, observed)
    return table
