"""The application that commands are added to, and which config the words after a command mean."""

import json
import pathlib
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from groupwise import __version__
from groupwise.cli.signals import interrupt_when_stopped
from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.recipe import DEFAULT, load_recipe, parse, parse_file, read_yaml
from groupwise.recipe.tiny import swapped

app = typer.Typer(
    help="GRPO post-training for language models.\n\n"
    "groupwise train                  watch the embedded model learn, on a CPU\n\n"
    "groupwise train demo steps=20    a recipe with overrides\n\n"
    "groupwise view runs/demo         the run in your browser",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

reward_app = typer.Typer(help="Rewards and reward models.", no_args_is_help=True)
app.add_typer(reward_app, name="reward")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"groupwise {__version__}")
        raise typer.Exit


@app.callback()
def options_before_the_command(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print it and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """What may stand between `groupwise` and a command; the callback above does the work."""
    if context.invoked_subcommand != "train":
        interrupt_when_stopped()


def say_loading(what: str) -> None:
    """Importing torch takes seconds: who looks at a terminal sees something before that."""
    if sys.stderr.isatty():
        typer.echo(f"{what}: loading ...", err=True)


def split(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe, if any, and the overrides: `demo steps=5` or just `steps=5`."""
    names = [word for word in words or [] if "=" not in word]
    if len(names) > 1:
        raise ConfigError(f"one recipe at a time, not {' and '.join(names)}")
    return (names[0] if names else None), [word for word in words or [] if "=" in word]


def config_for(
    model: str,
    task: str | None,
    data: str | None,
    overrides: list[str],
    *,
    trust_code: bool = False,
) -> Config:
    """A run's own config, or one for a plain model; either with another task on request."""
    options = {"model": model, "task": task, "task.path": data}
    typed = [
        f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in options.items() if v is not None
    ]
    typed += overrides
    saved = pathlib.Path(model) / "config.yaml"
    if not saved.is_file():
        return parse({"rollout": {}} if task else {}, typed)
    tree: dict[str, Any] = read_yaml(saved)
    engine = tree.get("engine")
    if isinstance(engine, dict) and engine.get("kind") == "vllm":
        tree["engine"] = {}
    for key in ("place", "timing"):  # the run's servers may be gone by now, or serve another run
        tree.pop(key, None)
    if task and tree.get("rollout") is None:
        tree["rollout"] = {}
    return parse_file(saved, tree, typed, trust_code=trust_code)


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
