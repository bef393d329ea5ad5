"""Arguments and options that several commands take, each said once."""

import json
import pathlib
from typing import Annotated, Any

import typer

from groupwise.errors import ConfigError, shortened

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A recipe's name or file; overrides."),
]
Model = Annotated[str, typer.Argument(help="A run folder, a model folder, a hub id, tiny ...")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Task = Annotated[str | None, typer.Option(help="Task kind, e.g. gsm8k.")]
Data = Annotated[str | None, typer.Option(help="The task's data: a folder or file.")]
Preset = Annotated[
    str | None, typer.Option(help="One of the recipe's presets; `groupwise recipes` lists them.")
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="The embedded model, two small steps, sample data: seconds on a CPU."
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the marked functions that a recipe or folder names."),
]
JsonFile = Annotated[
    pathlib.Path | None, typer.Option("--json", help="Write all of it to this file too.")
]


def write_json(path: pathlib.Path | None, value: Any) -> None:
    """For `--json`: nothing without a file."""
    if path is not None:
        write_file(path, json.dumps(value, indent=2) + "\n")


def write_file(path: pathlib.Path, text: str) -> None:
    """To a file that the user named, which may lie where nothing can be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {shortened(str(path))}: {error.strerror}. Name a file in a folder that "
            "is there, can be written to and has space left"
        ) from error
