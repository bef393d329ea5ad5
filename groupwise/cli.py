"""The command line: one thin function per command. torch is imported only where it is used.

Exit codes: 0 finished; 2 the user can fix it (one message, no traceback); 3 stopped by a signal
with a checkpoint saved; 1 a bug of ours, with its traceback.
"""

import json
import logging
import os
import pathlib
import sys
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from groupwise.config import Config
from groupwise.errors import ConfigError, GroupwiseError, Interrupted
from groupwise.recipe import DEFAULT, block_of, list_recipes, load_recipe, parse, read_yaml

app = typer.Typer(
    help="GRPO post-training for language models.\n\n"
    "groupwise train                      watch the embedded model learn (CPU, minutes)\n\n"
    "groupwise train demo steps=20        a recipe with overrides\n\n"
    "groupwise eval runs/demo             held-out accuracy of what you trained",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

reward_app = typer.Typer(help="Rewards and reward models.", no_args_is_help=True)
app.add_typer(reward_app, name="reward")

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A recipe's name or file; overrides."),
]


@app.command()
def train(
    words: Words = None,
    out: Annotated[str | None, typer.Option(help="Run folder [default: runs/RECIPE].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
) -> None:
    """Train. The same command again resumes the run in its folder.

    groupwise train --out runs/a

    groupwise train demo steps=40 algorithm=dapo batch.prompts=8
    """
    name, overrides = _split(words)
    config = load_recipe(name, overrides)
    from groupwise.train.api import train as run_training

    folder = out or f"runs/{pathlib.Path(name or DEFAULT).stem}"
    result = run_training(config, folder, quiet=quiet)
    after = result.summary["after"]
    score = "accuracy" if "accuracy" in after else "reward"
    typer.echo(f"{folder}: finished, held-out {score} {after[score]:.3f}")


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a hub id, tiny ...")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    task: Annotated[str | None, typer.Option(help="Task kind, e.g. gsm8k.")] = None,
    data: Annotated[str | None, typer.Option(help="The task's data: a folder or file.")] = None,
    k: Annotated[int | None, typer.Option(help="Sampled answers per problem.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many problems.", min=1)] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the metrics here.")] = None,
) -> None:
    """Accuracy, pass@k, maj@k, format and lengths on held-out problems.

    groupwise eval runs/demo --k 8

    groupwise eval Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --data data/gsm8k --limit 100
    """
    config = _config_for(model, task, data, [*(overrides or []), *_eval_overrides(k, limit)])
    from groupwise.load import load_parts
    from groupwise.tracking.console import console
    from groupwise.tracking.report import metrics_table

    with load_parts(config) as parts, console.status("evaluating"):
        metrics = parts.evaluate("test")
    console.print(metrics_table(metrics, f"{model} on {config.task.kind} (test)"))
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(metrics, indent=2) + "\n")


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a hub id, tiny ...")],
    prompt: Annotated[
        str | None, typer.Argument(help="A question (default: held-out ones).")
    ] = None,
    n: Annotated[int, typer.Option(help="Answers (or problems, without a prompt).", min=1)] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """See answers: to your prompt, or to held-out problems with their verdicts.

    groupwise sample runs/demo

    groupwise sample smollm2 "Which is larger, 17 or 71?" --temperature 0
    """
    config = _config_for(model, None, None, [f"seed={seed}"])
    from groupwise.sample import print_samples

    print_samples(config, prompt, n, temperature)


@app.command()
def check(words: Words = None) -> None:
    """Read a recipe and say what it will do, without training.

    groupwise check demo batch.prompts=32
    """
    from groupwise.check import print_check

    name, overrides = _split(words)
    print_check(name or DEFAULT, load_recipe(name, overrides))


@app.command()
def recipes() -> None:
    """List the recipes that come with groupwise."""
    for name, path in list_recipes().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        typer.echo(f"{name:<16} {first}")


@reward_app.command("bench")
def reward_bench(
    words: Words = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the report here.")] = None,
) -> None:
    """Try right, wrong, broken and gaming answers on a recipe's rewards. Exit code 2: a flaw.

    groupwise reward bench demo --json bench.json
    """
    name, overrides = _split(words)
    config = load_recipe(name, overrides)
    from groupwise.evaluate import judges
    from groupwise.load import find_rewards
    from groupwise.rewards.bench import bench_table, flaw_lines, run_bench, solve_problems
    from groupwise.rewards.scorer import Scorer
    from groupwise.tasks.catalog import build_task
    from groupwise.tracking.console import console

    task = build_task(config.task)
    own = Scorer(find_rewards(config, task), config.reward_timeout, "skip")
    with own, Scorer(judges(task), config.reward_timeout, "stop") as judge:
        report = run_bench(solve_problems(task.train, task.solve), own, judge)
    console.print(bench_table(report, f"rewards of {name or DEFAULT}"))
    for line in flaw_lines(report):
        console.print(line, markup=False, highlight=False)
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(report.json(), indent=2) + "\n")
    report.check()
    typer.echo("no wrong answer beats a right one")


def _split(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe, if any, and the overrides: `demo steps=5` or just `steps=5`."""
    names = [word for word in words or [] if "=" not in word]
    if len(names) > 1:
        raise ConfigError(f"one recipe at a time, not {' and '.join(names)}")
    return (names[0] if names else None), [word for word in words or [] if "=" in word]


def _eval_overrides(k: int | None, limit: int | None) -> list[str]:
    found = {"eval.k": k, "eval.problems": limit, "task.test_size": limit}
    return [f"{key}={value}" for key, value in found.items() if value is not None]


def _config_for(model: str, task: str | None, data: str | None, overrides: list[str]) -> Config:
    """A run's own config, or one for a plain model; either with another task on request."""
    saved = pathlib.Path(model) / "config.yaml"
    tree: dict[str, Any] = read_yaml(saved) if saved.is_file() else {}
    tree["model"] = model
    if task:
        tree["task"] = block_of("task", task)
        if not saved.is_file() or tree.get("rollout") is None:
            tree["rollout"] = {}
    if data:
        tree.setdefault("task", {})["path"] = data
    return parse(tree, overrides)


def main() -> None:
    # Threads that spin while they wait make a busy machine several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(show_time=False, show_path=False, markup=False)],
    )
    logging.getLogger("groupwise").setLevel(logging.INFO)
    try:
        app(standalone_mode=True)
    except GroupwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint is kept", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
