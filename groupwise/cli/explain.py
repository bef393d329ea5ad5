"""groupwise explain, replay and report: one step with every number, and a run on one page."""

import json
import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import TrustCode, Words, app, split
from groupwise.errors import ConfigError, RunFolderError
from groupwise.recipe import DEFAULT, load_recipe

StepNumber = Annotated[
    int | None,
    typer.Option("--step", help="A run's step.", show_default="the last stored", min=1),
]
GroupNumber = Annotated[
    int | None,
    typer.Option("--group", help="Show this group.", show_default="most spread", min=1),
]


@app.command()
def explain(
    words: Words = None,
    step: StepNumber = None,
    group: GroupNumber = None,
    html: Annotated[str | None, typer.Option(help="Write a page to this file.")] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Use stored log-probs; load no model.")
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """One GRPO step with every number: a recipe's first, or a run's step K.

    groupwise explain demo batch.prompts=4

    groupwise explain runs/demo --step 20 --html step-20.html
    """
    name, overrides = split(words)
    from groupwise.explain.page import step_page
    from groupwise.explain.step import is_run, recipe_step, run_step
    from groupwise.explain.terminal import print_step
    from groupwise.tracking.console import console

    if name is not None and is_run(name):
        if overrides:
            raise ConfigError(f"a run's settings are fixed: leave out {overrides[0]}")
        found = run_step(pathlib.Path(name), step, stored=stored, trust_code=trust_code)
    elif step is not None or stored:
        raise ConfigError("--step and --stored are for a run folder; a recipe has its first step")
    else:
        config = load_recipe(name, overrides, trust_code=trust_code)
        found = recipe_step(name or DEFAULT, config)
    if html is None:
        print_step(found, console, group)
        return
    pathlib.Path(html).write_text(step_page(found, group), encoding="utf-8")
    typer.echo(f"step {found.number} of {found.name}: {html}")


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    step: StepNumber = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="algorithm=dapo, algorithm.clip_high=0.3 ...")
    ] = None,
    group: GroupNumber = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Use stored log-probs; load no model.")
    ] = False,
    json_file: Annotated[str | None, typer.Option("--json", help="Write all of it here.")] = None,
    trust_code: TrustCode = False,
) -> None:
    """A stored step under another objective: what changes, token by token.

    groupwise replay runs/demo --step 20 --set algorithm=dapo
    """
    folder = _run_folder(run)
    from groupwise.explain.replay import print_replay, replay_step
    from groupwise.explain.step import run_step
    from groupwise.tracking.console import console

    found = run_step(folder, step, stored=stored, trust_code=trust_code)
    compared = replay_step(found, settings or [])
    print_replay(compared, console, group)
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(compared.json(), indent=2) + "\n")


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run folder, finished or not.")],
    out: Annotated[str | None, typer.Option(help="File.", show_default="RUN/report.html")] = None,
) -> None:
    """A run on one self-contained page: curves, before and after, answers, settings.

    groupwise report runs/demo
    """
    folder = _run_folder(run)
    from groupwise.tracking.html_report import report_page, write_report

    if out is None:
        typer.echo(str(write_report(folder)))
        return
    pathlib.Path(out).write_text(report_page(folder), encoding="utf-8")
    typer.echo(out)


def _run_folder(path: str) -> pathlib.Path:
    folder = pathlib.Path(path)
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{path} is not a run folder: it has no config.yaml")
    return folder
