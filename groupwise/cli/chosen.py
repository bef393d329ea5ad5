"""Which config a command's words, `--preset` and `--tiny` mean, for all commands that take them."""

import pathlib
from dataclasses import dataclass
from typing import Annotated

import typer

from groupwise.cli.app import split
from groupwise.config import Config
from groupwise.recipe import DEFAULT, load_recipe
from groupwise.tiny_run import swapped

Preset = Annotated[
    str | None, typer.Option(help="One of the recipe's presets; `groupwise recipes` lists them.")
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="The embedded model, two small steps, sample data: seconds on a CPU."
    ),
]


@dataclass(frozen=True)
class Chosen:
    """`title` names it for people, `name` is what the user wrote."""

    name: str
    config: Config
    preset: str | None
    tiny: bool

    @property
    def title(self) -> str:
        return " ".join([self.name, *self._additions()])

    @property
    def folder(self) -> str:
        """The default run folder: one of its own for each preset, and for tiny runs."""
        return "-".join([f"runs/{pathlib.Path(self.name).stem}", *self._additions()])

    def _additions(self) -> list[str]:
        return [*([self.preset] if self.preset else []), *(["tiny"] if self.tiny else [])]


def choose(words: list[str] | None, preset: str | None, tiny: bool, trust_code: bool) -> Chosen:
    """The config; what `--tiny` swapped is said."""
    name, overrides = split(words)
    config = load_recipe(name, overrides, preset=preset, tiny=tiny, trust_code=trust_code)
    if tiny:
        whole = load_recipe(name, overrides, preset=preset, trust_code=trust_code)
        typer.echo("--tiny: " + "; ".join(swapped(whole, config)))
    return Chosen(name or DEFAULT, config, preset, tiny)
