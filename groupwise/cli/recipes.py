"""groupwise recipes, check and doctor: which recipes there are, what one will do, the set-up."""

from dataclasses import asdict
from typing import Annotated

import typer

from groupwise.cli import options
from groupwise.cli.app import app, choose, say_loading
from groupwise.recipe import list_recipes, read_recipe


@app.command()
def recipes() -> None:
    """List the recipes that come with groupwise, and their presets."""
    from rich.table import Table

    from groupwise.tracking.console import console

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("recipe", "size", "what", "hardware"):
        table.add_column(column, no_wrap=column in ("recipe", "size"))
    known = [read_recipe(path) for path in list_recipes().values()]
    for recipe in known:
        table.add_row(recipe.name, recipe.size, recipe.line, recipe.hardware)
    console.print(table)
    typer.echo("\ngroupwise train RECIPE          with --tiny: in seconds on a CPU; with a preset:")
    for recipe in known:
        if recipe.presets:
            typer.echo(f"  {recipe.name} --preset {' | '.join(recipe.presets)}")


@app.command()
def check(
    words: options.Words = None,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
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
    profile: Annotated[
        bool, typer.Option("--profile", help="Say where the time of a step goes, by operation.")
    ] = False,
    trust_code: options.TrustCode = False,
) -> None:
    """What a recipe will do: what it costs on paper, what a trial on a few problems shows.

    groupwise check demo batch.prompts=32

    groupwise check demo --dry

    groupwise check demo --profile

    groupwise check cookbook --model shape:8b --gpu h100 --gpus 8
    """
    typed = [*(words or []), *([f"model={model}"] if model else [])]
    chosen = choose(typed, preset, tiny, trust_code)
    say_loading(chosen.title)
    from groupwise.check.show import print_check

    print_check(chosen.title, chosen.config, dry=dry, gpu=gpu, gpus=gpus, profile=profile)


@app.command()
def doctor(
    words: options.Words = None,
    preset: options.Preset = None,
    tiny: options.Tiny = False,
    trust_code: options.TrustCode = False,
    json_file: options.JsonFile = None,
) -> None:
    """Check the set-up: packages, device, disk, hub, a recipe's model and data, one training step.

    groupwise doctor

    groupwise doctor cookbook --preset quick --json doctor.json
    """
    config = choose(words, preset, tiny, trust_code).config
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
    options.write_json(json_file, [asdict(line) for line in lines])
    wrong = sum(line.status == "fix" for line in lines)
    console.print(f"{wrong} to fix" if wrong else "ready to train", highlight=False)
    if wrong:
        raise typer.Exit(2)
