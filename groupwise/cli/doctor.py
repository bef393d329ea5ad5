"""groupwise doctor: the set-up check."""

import json
import pathlib
from dataclasses import asdict
from typing import Annotated

import typer

from groupwise.cli.app import TrustCode, Words, app, split
from groupwise.recipe import load_recipe


@app.command()
def doctor(
    words: Words = None,
    trust_code: TrustCode = False,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the lines here.")] = None,
) -> None:
    """Check the set-up: packages, device, disk, hub, a recipe's model and data, one training step.

    groupwise doctor

    groupwise doctor demo --json doctor.json
    """
    name, overrides = split(words)
    config = load_recipe(name, overrides, trust_code=trust_code)
    from groupwise.check.doctor import examine
    from groupwise.tracking.console import console, printable

    marks = {"ok": "[green]ok  [/]", "note": "[cyan]note[/]", "fix": "[red]fix [/]"}
    lines = []
    for line in examine(config):
        lines.append(line)
        shown = f"{marks[line.status]} [bold]{printable(line.name)}[/]: {printable(line.text)}"
        console.print(shown, highlight=False)
        if line.fix:
            console.print(f"       -> {printable(line.fix)}", highlight=False)
    if json_file:
        text = json.dumps([asdict(line) for line in lines], indent=2)
        pathlib.Path(json_file).write_text(text + "\n")
    wrong = sum(line.status == "fix" for line in lines)
    console.print(f"{wrong} to fix" if wrong else "ready to train", highlight=False)
    if wrong:
        raise typer.Exit(2)
