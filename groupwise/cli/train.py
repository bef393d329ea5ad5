"""groupwise train: a recipe becomes a run folder."""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from groupwise.cli import options
from groupwise.cli.app import app, choose
from groupwise.cli.signals import interrupt_when_stopped
from groupwise.config import Config
from groupwise.distributed.gpus import count_gpus, processes_for
from groupwise.errors import ConfigError, quoted
from groupwise.tracking.log_file import libraries_off_screen
from groupwise.tracking.run import restart as set_run_aside

MOST_PROCESSES = 1024
"""That one machine starts: more is a slip of the keyboard."""


@app.command()
def train(
    words: options.Words = None,
    out: Annotated[str | None, typer.Option(help="Run folder.", show_default="runs/RECIPE")] = None,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over; what is in the folder is kept aside.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
    nproc: Annotated[
        str, typer.Option(help="Processes that train together here; auto: one for each GPU.")
    ] = "auto",
    launcher: Annotated[
        str | None, typer.Option("--launch", help="ray: as a job on a Ray cluster.")
    ] = None,
    trust_code: options.TrustCode = False,
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
    config, folder = chosen.config, out or chosen.folder
    if restart and os.environ.get("RANK", "0") == "0":
        set_run_aside(pathlib.Path(folder))
    if launcher is not None:
        workers = 1 if nproc == "auto" else _count(nproc)
        return _finished(folder, _on_ray(launcher, config, folder, workers, quiet))
    processes = _processes(nproc, config)
    if processes > 1:
        flags = {"--tiny": tiny, "--trust-code": trust_code, "--quiet": quiet}
        given = [*(["--preset", preset] if preset else []), *(f for f, on in flags.items() if on)]
        again = ["train", *(words or []), "--out", folder, *given]
        raise typer.Exit(launch(again, processes))
    stop_with_launcher()
    first = os.environ.get("RANK", "0") == "0"
    if first and not quiet:  # importing torch takes seconds: something is to be seen before that
        what = f"{config.model} on {config.task.kind}, {config.steps} steps"
        typer.echo(f"{chosen.title}: {what}, into {folder}; loading ...")
    libraries_off_screen()
    from groupwise.training.api import train as run_training

    summary = run_training(config, folder, quiet=quiet).summary
    if first:
        _finished(folder, summary)


def _processes(nproc: str, config: Config) -> int:
    """How many are to be started here; a process that a launcher started starts none."""
    if nproc != "auto":
        count = _count(nproc)
        if count > 1 and "RANK" in os.environ:
            raise ConfigError(
                f"--nproc {nproc} starts processes itself, and this is one that another launcher "
                "started (RANK is set): leave --nproc out"
            )
        return count
    if "RANK" in os.environ:
        return 1
    here = config.place.kind == "here" and config.engine.kind != "vllm"
    count, line = processes_for(count_gpus(), config.device, config.batch.prompts, here)
    if line:
        typer.echo(line)
    return count


def _count(nproc: str) -> int:
    count = int(nproc) if nproc.isdecimal() and len(nproc) < 5 else 0
    if not 1 <= count <= MOST_PROCESSES:
        raise ConfigError(
            f"--nproc takes auto or a number from 1 to {MOST_PROCESSES}, not {quoted(nproc)}"
        )
    return count


def _on_ray(
    launcher: str, config: Config, folder: str, nproc: int, quiet: bool
) -> Mapping[str, Any]:
    if launcher != "ray":
        raise ConfigError(f"--launch takes ray, not {launcher!r}")
    from groupwise.training.ray_job import train_on_ray

    interrupt_when_stopped()
    return train_on_ray(config, folder, workers=nproc if nproc > 1 else None, quiet=quiet)


def _finished(folder: str, summary: Mapping[str, Any]) -> None:
    after = summary["after"]
    score = "accuracy" if "accuracy" in after else "reward"
    reached = after.get(score, math.nan)
    typer.echo(f"{folder}: {summary['status']}, test {score} {reached:.3f}")
