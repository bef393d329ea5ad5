"""groupwise train: a recipe becomes a run folder."""

import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from groupwise.cli.app import TrustCode, Words, app
from groupwise.cli.chosen import Preset, Tiny, choose
from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.tracking.run import restart as set_run_aside


@app.command()
def train(
    words: Words = None,
    out: Annotated[str | None, typer.Option(help="Run folder.", show_default="runs/RECIPE")] = None,
    preset: Preset = None,
    tiny: Tiny = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over; what is in the folder is kept aside.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
    nproc: Annotated[
        int, typer.Option(help="Processes on this machine that train together.", min=1)
    ] = 1,
    launcher: Annotated[
        str | None, typer.Option("--launch", help="ray: as a job on a Ray cluster.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Train. The same command again resumes the run in its folder.

    groupwise train --out runs/a

    groupwise train demo steps=40 algorithm=dapo batch.prompts=8

    groupwise train cookbook --preset quick

    groupwise train cookbook --tiny

    groupwise train demo --nproc 2 distributed.kind=fsdp2

    groupwise train demo --launch ray ray.workers=2
    """
    from groupwise.distributed.launch import launch, stop_with_launcher

    chosen = choose(words, preset, tiny, trust_code)
    folder = out or chosen.folder
    if restart and os.environ.get("RANK", "0") == "0":
        set_run_aside(pathlib.Path(folder))
    if launcher is not None:
        _finished(folder, _on_ray(launcher, chosen.config, folder, nproc, quiet))
        return
    if nproc > 1 and "RANK" in os.environ:
        raise ConfigError(
            f"--nproc {nproc} starts processes itself, and this is one that another launcher "
            "started (RANK is set): leave --nproc out"
        )
    if nproc > 1:
        options = [*(["--preset", preset] if preset else []), *["--tiny"] * tiny]
        options += ["--trust-code"] * trust_code
        again = ["train", *(words or []), "--out", folder, *options, *["--quiet"] * quiet]
        raise typer.Exit(launch(again, nproc))
    stop_with_launcher()
    from groupwise.training.api import train as run_training

    result = run_training(chosen.config, folder, quiet=quiet)
    if os.environ.get("RANK", "0") != "0":
        return
    _finished(folder, result.summary)


def _on_ray(
    launcher: str, config: Config, folder: str, nproc: int, quiet: bool
) -> Mapping[str, Any]:
    if launcher != "ray":
        raise ConfigError(f"--launch takes ray, not {launcher!r}")
    from groupwise.training.ray_job import train_on_ray

    return train_on_ray(config, folder, workers=nproc if nproc > 1 else None, quiet=quiet)


def _finished(folder: str, summary: Mapping[str, Any]) -> None:
    after = summary["after"]
    score = "accuracy" if "accuracy" in after else "reward"
    typer.echo(f"{folder}: finished, held-out {score} {after[score]:.3f}")
