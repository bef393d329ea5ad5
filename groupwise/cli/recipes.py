"""groupwise recipes and groupwise check: which recipes there are, and what one will do."""

from typing import Annotated

import typer

from groupwise.cli.app import TrustCode, Words, app
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
    model: Annotated[
        str | None, typer.Option(help="Another model, or a shape to plan for: shape:8b.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Plan for this GPU: h100, rtx4090, ...", show_default="this one"),
    ] = None,
    gpus: Annotated[int, typer.Option(help="Plan for so many of them.", min=1)] = 1,
    trust_code: TrustCode = False,
) -> None:
    """What a recipe will do: what it costs on paper, what a trial on a few problems shows.

    groupwise check demo batch.prompts=32

    groupwise check demo --dry

    groupwise check cookbook --model shape:8b --gpu h100 --gpus 8
    """
    typed = [*(words or []), *([f"model={model}"] if model else [])]
    chosen = choose(typed, preset, tiny, trust_code)
    from groupwise.check.show import print_check

    print_check(chosen.title, chosen.config, dry=dry, gpu=gpu, gpus=gpus)
