"""A setting that is one of several small classes, named by `kind`.

    algorithm: {surrogate: {kind: clip, clip_high: 0.28}}          one of ours
    algorithm: {surrogate: {kind: my_file.py:MySurrogate, alpha: 2}}   one of yours

A class of ours is a file in its folder (objective/surrogates, objective/advantages) and nothing
else: `classes_in` reads the folder. Reading a setting never runs anybody's code: a class of yours
is kept as `FromFile` until groupwise.load makes an object of it. No torch here.
"""

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    SerializeAsAny,
    Tag,
    ValidationError,
    WrapValidator,
    model_validator,
)

from groupwise.errors import ConfigError
from groupwise.extensions import MARK, Code, load_object


class Choice(BaseModel):
    """Derive one class from a base of this (`Surrogate`, `AdvantageEstimator`) for each kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str = ""
    """The name in a recipe. For a class outside groupwise: where it is, `file.py:Class`."""

    @model_validator(mode="before")
    @classmethod
    def _name_a_class_of_your_own(cls, data: Any) -> Any:
        named = cls.model_fields["kind"].default
        if isinstance(data, Mapping) and "kind" not in data and not named:
            return {"kind": f"{cls.__module__}:{cls.__qualname__}", **data}
        return data


Kind = TypeVar("Kind", bound=Choice)


class FromFile(Choice):
    """A class outside groupwise, not loaded yet. Its own fields stand beside `kind`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    derived_from: ClassVar[type[Choice]]

    def load(self, setting: str) -> Any:
        """Runs the user's code."""
        chosen = load_object(self.kind, what=setting)
        base = self.derived_from
        if not (isinstance(chosen, type) and issubclass(chosen, base)):
            raise ConfigError(f"{setting}={self.kind} must be a class derived from {base.__name__}")
        try:
            return chosen.model_validate(self.model_dump())
        except ValidationError as error:
            places = [".".join(map(str, e["loc"])) + f": {e['msg']}" for e in error.errors()]
            raise ConfigError(f"{setting}={self.kind}: {'; '.join(places)}") from None


def classes_in(package: str, base: type[Kind]) -> dict[str, type[Kind]]:
    """The classes derived from `base` in the modules of a package, by their kind."""
    names = [module.name for module in pkgutil.iter_modules(sys.modules[package].__path__)]
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    values = [value for module in modules for value in vars(module).values()]
    classes = [value for value in values if isinstance(value, type) and issubclass(value, base)]
    return {chosen.model_fields["kind"].default: chosen for chosen in classes if chosen is not base}


def one_of(base: type[Choice], classes: Mapping[str, type[Choice]]) -> Any:
    """The type of a setting that holds one of `classes`, or one from a file of the user's."""

    class FromFileOfUser(FromFile):
        derived_from: ClassVar[type[Choice]] = base
        kind: Annotated[str, Code(getattr(base, MARK))] = ""

    def tag(value: Any) -> str | None:
        kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
        return "file.py:Class" if isinstance(kind, str) and ":" in kind else kind

    def validate(value: Any, handler: Any) -> Any:
        if isinstance(value, base):
            return value
        return handler({"kind": value} if isinstance(value, str) else value)

    tagged = {**classes, "file.py:Class": FromFileOfUser}
    members = tuple(Annotated[member, Tag(kind)] for kind, member in tagged.items())
    union = Annotated[Union[members], Discriminator(tag)]  # noqa: UP007
    return Annotated[SerializeAsAny[union], WrapValidator(validate)]


def chosen_block(
    tree: dict[str, Any], given: Any, start: Mapping[str, Any], classes: Mapping[str, type[Choice]]
) -> Any:
    """The block of a choice: what was `given` over what it starts from, if that is of its kind.

    Settings of the chosen class that stand beside the block, in `tree`, are moved into it.
    """
    if isinstance(given, str):
        given = {"kind": given}
    if not isinstance(given, Mapping):
        return given
    same = given.get("kind", start["kind"]) == start["kind"]
    block = {**start, **given} if same else dict(given)
    chosen = classes.get(block["kind"]) if isinstance(block["kind"], str) else None
    own = (chosen.model_fields.keys() - {"kind"}) & tree.keys() if chosen else ()
    return {**block, **{name: tree.pop(name) for name in own}}
