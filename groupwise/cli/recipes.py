"""groupwise recipes and groupwise check: which recipes there are, and what one will do."""

import typer

from groupwise.cli.app import Words, app, split
from groupwise.recipe import DEFAULT, list_recipes, load_recipe


@app.command()
def recipes() -> None:
    """List the recipes that come with groupwise."""
    for name, path in list_recipes().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        typer.echo(f"{name:<16} {first}")


@app.command()
def check(words: Words = None) -> None:
    """Read a recipe and say what it will do, without training.

    groupwise check demo batch.prompts=32
    """
    from groupwise.check import print_check

    name, overrides = split(words)
    print_check(name or DEFAULT, load_recipe(name, overrides))
