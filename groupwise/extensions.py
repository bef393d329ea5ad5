"""Code from outside: functions and classes named as `file.py:Name` or `package.module:Name`.

What a user types or passes is theirs and runs as it is. What a recipe or a run folder names is
somebody else's: groupwise.config.code asks for `--trust-code` first, and even then takes only what
its author marked (with `@groupwise.task`, `@groupwise.reward` ..., or by deriving a class from
`Surrogate`), which `os:system` never is.
"""

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from groupwise.errors import ConfigError, type_name

Marked = TypeVar("Marked", bound=Callable[..., Any])
MARK = "__groupwise_extension__"


@dataclass(frozen=True)
class Code:
    """Beside a field's type: its value may name code. `path: Annotated[str, Code("task")]`"""

    kind: str
    """The decorator that marks such code, and the word for it in messages."""
    unless: str | None = None
    """What values begin with that have a colon too and are no code."""
    always: bool = False
    """Every value names code, which runs in a process of its own and cannot be marked."""

    def takes(self, value: str | None) -> bool:
        if value is None or self.always:
            return value is not None
        return ":" in value and not (self.unless and value.startswith(self.unless))


def one_of(*known: str) -> Callable[[str], str]:
    """A validator of settings that are one of these names, or name code."""

    def check(value: str) -> str:
        if value in known or ":" in value:
            return value
        raise ValueError(
            f"must be {', '.join(known)}, or code of yours as file.py:name{nearest(value, known)}"
        )

    return check


def extension(kind: str) -> Callable[[Marked], Marked]:
    """A decorator that marks a function or a class as made for groupwise, to be used as `kind`."""

    def mark(code: Marked) -> Marked:
        setattr(code, MARK, kind)
        return code

    return mark


task = extension("task")
reward = extension("reward")
engine = extension("engine")
optimizer = extension("optimizer")
tracker = extension("tracker")
environment = extension("environment")
tool = extension("tool")


BASES = {"surrogate": "Surrogate", "advantage": "AdvantageEstimator"}
"""What is marked by the class that it is derived from."""


def marking(kind: str) -> str:
    """How to mark code as `kind`, for messages."""
    base = BASES.get(kind)
    return f"derive it from {base}" if base else f"write @groupwise.{kind} above it"


def is_marked(code: Any, kind: str) -> bool:
    mark = getattr(code, MARK, None)
    return isinstance(mark, str) and mark == kind


def load_object(reference: str, *, what: str) -> Callable[..., Any]:
    """The function or class that `reference` names. Imports its module. `what` is for messages."""
    source, _, name = reference.rpartition(":")
    said = f"{what} {reference!r}"
    if not source or not name.isidentifier():
        raise ConfigError(f"{said} must look like file.py:name or package.module:name")
    try:
        module = _file_module(Path(source)) if source.endswith(".py") else _named_module(source)
    except ConfigError as error:
        raise ConfigError(f"{said}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{said}: importing {source} raised {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        names = [other for other, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"{said}: {source} has no function or class {name!r}{nearest(name, names)}"
        )
    code = getattr(module, name)
    if not callable(code):
        raise ConfigError(f"{said} is {type_name(code)}, not a function or class")
    return code


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def existing_file(file: Path) -> Path:
    file = Path(os.path.expanduser(file)).resolve()
    if not file.is_file():
        others = [other.name for other in file.parent.glob("*.py")]
        raise ConfigError(
            f"there is no file {file}{nearest(file.name, others)}. "
            "The path counts from the folder where the command is run"
        )
    return file


def _named_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"there is no module {error.name!r}: install it, or write the path of a file "
            "(my_file.py:name)"
        ) from None


def _file_module(file: Path) -> ModuleType:
    """The file under its own name, as its neighbours and other processes import it too."""
    file = existing_file(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that it hides no module of anyone else
    try:
        spec = importlib.util.find_spec(file.stem)
    except (ImportError, ValueError):  # a dot in the name; a module that was made by hand
        spec = None
    if spec is not None and spec.origin and Path(spec.origin).resolve() == file:
        return importlib.import_module(file.stem)
    digest = hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()
    name = f"{file.stem}_{digest}"  # its own belongs to another module
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
