"""groupwise import: settings of TRL as a recipe."""

import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import app
from groupwise.errors import ConfigError


@app.command("import")
def import_settings(
    file: Annotated[str, typer.Argument(help="A TRL GRPOConfig: YAML or JSON.")],
    out: Annotated[
        str | None, typer.Option(help="Recipe.", show_default="FILE-recipe.yaml")
    ] = None,
) -> None:
    """A TRL GRPOConfig becomes a recipe; says what has no counterpart and which defaults differ.

    groupwise import grpo_config.yaml --out mine.yaml
    """
    from groupwise.interop.import_trl import from_trl, read_fields, recipe_text

    source = pathlib.Path(file)
    found = from_trl(read_fields(source))
    target = pathlib.Path(out) if out else source.with_name(f"{source.stem}-recipe.yaml")
    if target.resolve() == source.resolve():
        raise ConfigError(f"--out {out} is the file that is read: name another")
    target.write_text(recipe_text(found, source.name), encoding="utf-8")
    for title, lines in (
        ("no counterpart", found.lost),
        ("TRL's default, written down", found.defaults),
        ("note", found.notes),
    ):
        for line in lines:
            typer.echo(f"{title}: {line}")
    typer.echo(f"{target}: look it over, then  groupwise check {target}")
