"""groupwise environment ...: what a model talks to, before it is trained on that."""

from typing import Annotated

import typer

from groupwise.cli import options
from groupwise.cli.app import app, choose

environment_app = typer.Typer(help="Environments.", no_args_is_help=True)
app.add_typer(environment_app, name="environment")


@environment_app.callback()
def environment() -> None:
    """Environments."""


@environment_app.command("bench")
def environment_bench(
    words: options.Words = None,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
    problems: Annotated[int, typer.Option(help="Number of problems to play.", min=1)] = 4,
    model: Annotated[
        str | None,
        typer.Option(help="A model that works honestly: its mean reward is the baseline."),
    ] = None,
    json_file: options.JsonFile = None,
    trust_code: options.TrustCode = False,
) -> None:
    """Policies that cheat against a recipe's environment. Exit code 0: none pays; 1: a flaw.

    groupwise environment bench demo environment=guess.py:Guess --json bench.json
    """
    chosen = choose(words, preset, tiny, trust_code)
    config = chosen.config
    from groupwise.environments.bench import Bench, bench_table, check_environment, solved_problems
    from groupwise.environments.catalog import find_environment
    from groupwise.load import find_rewards
    from groupwise.rewards.scorer import Scorer
    from groupwise.samples.earned import mean_reward
    from groupwise.tasks.catalog import build_task
    from groupwise.tracking.console import console

    factory = check_environment(find_environment(config.environment))
    task = build_task(config.task)
    earned = None
    if model is not None:
        earned = mean_reward(config.model_copy(update={"model": model}), problems)
    with Scorer(find_rewards(config, task), config.reward_timeout, "skip") as scorer:
        report = Bench(factory, config, scorer).run(solved_problems(task, problems), earned)
    console.print(bench_table(report, f"{factory.name} of {chosen.title}"))
    options.write_json(json_file, report.json())
    typer.echo(f"honest work earns {report.honest:.2f}: {report.measured_by}")
    if report.flaws:
        typer.echo(f"{report.flaws} of {len(report.lines)} policies show a flaw: see above")
        raise typer.Exit(1)
    typer.echo("no policy that cheats earns what honest work does")
