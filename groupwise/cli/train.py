"""groupwise train: a recipe becomes a run folder."""

import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import Words, app, split
from groupwise.recipe import DEFAULT, load_recipe


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
    name, overrides = split(words)
    config = load_recipe(name, overrides)
    from groupwise.train.api import train as run_training

    folder = out or f"runs/{pathlib.Path(name or DEFAULT).stem}"
    result = run_training(config, folder, quiet=quiet)
    after = result.summary["after"]
    score = "accuracy" if "accuracy" in after else "reward"
    typer.echo(f"{folder}: finished, held-out {score} {after[score]:.3f}")
