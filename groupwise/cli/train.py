"""groupwise train: a recipe becomes a run folder."""

from typing import Annotated

import typer

from groupwise.cli.app import Words, app
from groupwise.cli.chosen import Preset, Tiny, choose


@app.command()
def train(
    words: Words = None,
    out: Annotated[str | None, typer.Option(help="Run folder (default: runs/RECIPE).")] = None,
    preset: Preset = None,
    tiny: Tiny = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
) -> None:
    """Train. The same command again resumes the run in its folder.

    groupwise train --out runs/a

    groupwise train demo steps=40 algorithm=dapo batch.prompts=8

    groupwise train cookbook --preset quick

    groupwise train cookbook --tiny
    """
    chosen = choose(words, preset, tiny)
    from groupwise.train.api import train as run_training

    folder = out or chosen.folder
    result = run_training(chosen.config, folder, quiet=quiet)
    after = result.summary["after"]
    score = "accuracy" if "accuracy" in after else "reward"
    typer.echo(f"{folder}: finished, held-out {score} {after[score]:.3f}")
