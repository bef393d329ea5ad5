"""groupwise export: a trained model for use elsewhere, or a run's settings for another trainer."""

import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import TrustCode, app
from groupwise.errors import ConfigError


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or a model folder.")],
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder, or script with --to.", show_default="RUN/export, RUN/export_TO.py"
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter into the weights.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(help="trl or neuron: a script that trains the same there.")
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(help="--to neuron: cores that share the model.", min=1)
    ] = 8,
    push: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload to this private hub repository.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a run's model to a folder of its own, upload it, or write a script for TRL.

    groupwise export runs/demo --merge --out merged

    groupwise export runs/demo --to trl --out train_with_trl.py
    """
    if to is not None:
        if merge or push:
            raise ConfigError("--to writes a script: leave out --merge and --push")
        _script(model, to, out, tensor_parallel, trust_code)
        return
    from groupwise.interop.folder import export_model, push_model

    target = pathlib.Path(out) if out else pathlib.Path(model) / "export"
    merged = export_model(model, target, merge=merge)
    what = "the adapter and its model, merged" if merged else "the model as it was saved"
    typer.echo(f"{target}: {what}")
    if push:
        typer.echo(push_model(target, push))


def _script(run: str, to: str, out: str | None, tensor_parallel: int, trust_code: bool) -> None:
    if to not in ("trl", "neuron"):
        raise ConfigError(f"--to takes trl or neuron, not {to!r}")
    target = pathlib.Path(out) if out else pathlib.Path(run) / f"export_{to}.py"
    if target.suffix != ".py":
        raise ConfigError(f"--out {target} must be a script: name it {target}.py")
    if to == "trl":
        from groupwise.interop.trl import export_trl

        lost = export_trl(run, target, trust_code=trust_code)
    else:
        from groupwise.interop.neuron import export_neuron

        lost = export_neuron(run, target, tensor_parallel, trust_code=trust_code)
    for line in lost:
        typer.echo(f"not expressed: {line}")
    typer.echo(f"{target} and {target.with_suffix('.jsonl').name}")
