"""groupwise compare: runs side by side on the same problems."""

import json
import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import app


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders; one: before and after.")
    ],
    seed: Annotated[int, typer.Option(help="Of the bootstrap.", min=0)] = 0,
    json_file: Annotated[str | None, typer.Option("--json", help="Write all of it here.")] = None,
) -> None:
    """Runs side by side, with 95 % intervals of their differences (paired bootstrap).

    groupwise compare runs/a runs/b

    groupwise compare runs/demo --json before-after.json
    """
    from groupwise.compare import compare_runs, print_comparison
    from groupwise.tracking.console import console

    found = compare_runs([pathlib.Path(run) for run in runs], seed=seed)
    print_comparison(found, console)
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(found.json(), indent=2) + "\n")
