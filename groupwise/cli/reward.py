"""groupwise reward ...: rewards and reward models."""

import json
import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import Words, reward_app, split
from groupwise.recipe import DEFAULT, load_recipe


@reward_app.command("bench")
def reward_bench(
    words: Words = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the report here.")] = None,
) -> None:
    """Try right, wrong, broken and gaming answers on a recipe's rewards. Exit code 2: a flaw.

    groupwise reward bench demo --json bench.json
    """
    name, overrides = split(words)
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
