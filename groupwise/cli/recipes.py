"""groupwise recipes and groupwise check: which recipes there are, and what one will do."""

from typing import Annotated

import typer

from groupwise.cli.app import Words, app
from groupwise.cli.chosen import Preset, Tiny, choose
from groupwise.recipe import list_recipes, read_recipe


@app.command()
def recipes() -> None:
    """List the recipes that come with groupwise, and their presets."""
    from rich.table import Table

    from groupwise.tracking.console import console

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("recipe", "size", "what", "hardware"):
        table.add_column(column, no_wrap=column in ("recipe", "size"))
    found = [read_recipe(path) for path in list_recipes().values()]
    for recipe in found:
        table.add_row(recipe.name, recipe.size, recipe.line, recipe.hardware)
    console.print(table)
    typer.echo("\ngroupwise train RECIPE          with --tiny: in seconds on a CPU; with a preset:")
    for recipe in found:
        if recipe.presets:
            typer.echo(f"  {recipe.name} --preset {' | '.join(recipe.presets)}")


@app.command()
def check(
    words: Words = None,
    preset: Preset = None,
    tiny: Tiny = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="Say what the recipe says; try nothing.")
    ] = False,
) -> None:
    """What a recipe will do: reads it, tries it on a few problems, and says what to mend.

    groupwise check demo batch.prompts=32

    groupwise check demo --dry
    """
    chosen = choose(words, preset, tiny)
    from groupwise.check.show import print_check

    print_check(chosen.title, chosen.config, dry=dry)
