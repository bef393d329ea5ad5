"""groupwise compare, view, explain, replay and report: what a run did."""

import logging
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from groupwise.cli import options
from groupwise.cli.app import app, choose, say_loading, split
from groupwise.errors import (
    ConfigError,
    GroupwiseError,
    RunFolderError,
    shortened,
)
from groupwise.tracking.run import run_folder
from groupwise.tracking.whole import write_whole

log = logging.getLogger("groupwise")


@contextmanager
def reading(*folders: str | pathlib.Path) -> Iterator[None]:
    """Whatever goes wrong with what a folder holds is that folder's fault: anyone may have made it.

    Python callers get the library's own error.
    """
    try:
        yield
    except (GroupwiseError, MemoryError, typer.Exit, typer.Abort):
        raise
    except Exception as error:
        log.debug("reading %s", folders, exc_info=True)
        named = " and ".join(shortened(str(folder)) for folder in folders)
        reason = shortened(" ".join(str(error).split()))
        raise RunFolderError(
            f"{named} cannot be read: something in it is damaged or of another kind than expected "
            f"({type(error).__name__}: {reason})"
        ) from error


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders; one: before and after.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.", min=0)] = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Runs side by side, with 95 % intervals of their differences (paired bootstrap).

    groupwise compare runs/a runs/b

    groupwise compare runs/demo --json before-after.json
    """
    from groupwise.report.compare import compare_runs, print_comparison
    from groupwise.tracking.console import console

    with reading(*runs):
        comparison = compare_runs([pathlib.Path(run) for run in runs], seed=seed)
        print_comparison(comparison, console)
    options.write_json(json_file, comparison.json())


@app.command()
def view(
    runs: Annotated[
        list[pathlib.Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Run folders, or folders of them.", show_default="runs"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on.", show_default="8642, or a free one", min=0, max=65535
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Curves, answers token by token, settings and findings of runs, live, in a browser.

    groupwise view runs/demo

    groupwise view runs/a runs/b --port 8080 --no-browser
    """
    from groupwise.view.serve import serve

    def announce(address: str) -> None:
        typer.echo(address)
        if not no_browser and _has_screen():
            import webbrowser

            webbrowser.open(address)

    serve(runs or [], host, port, announce)


def _has_screen() -> bool:
    """Without one, a browser that runs in the terminal would take it over."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(named) or sys.platform in ("darwin", "win32")


StepNumber = Annotated[
    int | None,
    typer.Option("--step", help="A run's step.", show_default="the last after a checkpoint", min=1),
]
GroupNumber = Annotated[
    int | None,
    typer.Option("--group", help="Show this group.", show_default="most spread", min=1),
]
Stored = Annotated[bool, typer.Option("--stored", help="Use stored log-probs; load no model.")]


@app.command()
def explain(
    words: options.Words = None,
    step: StepNumber = None,
    group: GroupNumber = None,
    html: Annotated[str | None, typer.Option(help="Write a page to this file.")] = None,
    stored: Stored = False,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
    trust_code: options.TrustCode = False,
) -> None:
    """One GRPO step with every number: a recipe's first, or a run's step K.

    groupwise explain demo batch.prompts=4

    groupwise explain runs/demo --step 20 --html step-20.html
    """
    name, overrides = split(words)
    say_loading(name or "demo")
    from groupwise.explain.page import step_page
    from groupwise.explain.step import is_run, recipe_step, run_step
    from groupwise.explain.terminal import print_step
    from groupwise.tracking.console import console

    if name is not None and is_run(name):
        fixed = [*overrides, *["--preset"] * (preset is not None), *["--tiny"] * tiny]
        if fixed:
            raise ConfigError(f"a run's settings are fixed: leave out {fixed[0]}")
        with reading(name):
            explained = run_step(pathlib.Path(name), step, stored=stored, trust_code=trust_code)
    elif step is not None or stored:
        raise ConfigError("--step and --stored are for a run folder; a recipe has its first step")
    else:
        chosen = choose(words, preset, tiny, trust_code)
        explained = recipe_step(chosen.title, chosen.config)
    with reading(explained.name):
        page = None if html is None else step_page(explained, group)
        if page is None:
            print_step(explained, console, group)
    if html is None or page is None:
        return
    options.write_file(pathlib.Path(html), page)
    typer.echo(f"step {explained.number} of {explained.name}: {html}")


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    step: StepNumber = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="algorithm=dapo, algorithm.clip_high=0.3 ...")
    ] = None,
    group: GroupNumber = None,
    stored: Stored = False,
    json_file: options.JsonFile = None,
    trust_code: options.TrustCode = False,
) -> None:
    """A stored step under another objective: what changes, token by token.

    groupwise replay runs/demo --step 20 --set algorithm=dapo
    """
    folder = run_folder(run)
    say_loading(run)
    from groupwise.explain.replay import print_replay, replay_step
    from groupwise.explain.step import run_step
    from groupwise.tracking.console import console

    with reading(run):
        was = run_step(folder, step, stored=stored, trust_code=trust_code)
        compared = replay_step(was, settings or [])
        print_replay(compared, console, group)
    options.write_json(json_file, compared.json())


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run folder, finished or not.")],
    out: Annotated[str | None, typer.Option(help="File.", show_default="RUN/report.html")] = None,
) -> None:
    """A run on one self-contained page: curves, before and after, answers, settings.

    groupwise report runs/demo
    """
    folder = run_folder(run)
    from groupwise.report.run_page import report_page

    with reading(run):
        page = report_page(folder)
    if out is None:
        write_whole(folder / "report.html", page)
    else:
        options.write_file(pathlib.Path(out), page)
    typer.echo(out or str(folder / "report.html"))
