"""groupwise export: a trained model for use elsewhere."""

import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import app


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or a model folder.")],
    out: Annotated[str | None, typer.Option(help="Folder to write [default: RUN/export].")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter into the weights.")
    ] = False,
) -> None:
    """Write a run's model to a folder of its own; --merge makes an adapter a whole model.

    groupwise export runs/demo --merge --out merged
    """
    from groupwise.export import export_model

    target = pathlib.Path(out) if out else pathlib.Path(model) / "export"
    merged = export_model(model, target, merge=merge)
    what = "the adapter and its model, merged" if merged else "the model as it was saved"
    typer.echo(f"{target}: {what}")
