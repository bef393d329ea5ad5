"""groupwise view: look at runs in a browser."""

import os
import pathlib
import sys
from typing import Annotated

import typer

from groupwise.cli.app import app


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
