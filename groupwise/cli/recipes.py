"""groupwise recipes and groupwise check: which recipes there are, and what one will do."""

from typing import Annotated

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
def check(
    words: Words = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="Say what the recipe says; try nothing.")
    ] = False,
) -> None:
    """What a recipe will do: reads it, tries it on a few problems, and says what to mend.

    groupwise check demo batch.prompts=32

    groupwise check demo --dry
    """
    name, overrides = split(words)
    config = load_recipe(name, overrides)
    from groupwise.check.show import print_check

    print_check(name or DEFAULT, config, dry=dry)
