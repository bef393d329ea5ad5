"""A setting that is one of several small classes, named by `kind`.

    algorithm: {surrogate: {kind: clip, clip_high: 0.28}}          one of ours
    algorithm: {surrogate: {kind: my_file.py:MySurrogate, alpha: 2}}   one of yours

A class of ours is a file in its folder (objective/surrogates, objective/advantages) and nothing
else: `known` reads the folder. Reading a setting never runs anybody's code: `kind: file:Class` is
kept as `FromFile` until groupwise.load makes an object of it. No torch here.
"""

import importlib
import pkgutil
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
from groupwise.extensions import Code, load_object


class Choice(BaseModel):
    """Derive one class from a base of this (`Surrogate`, `AdvantageEstimator`) for each kind."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

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

    TAG: ClassVar[str] = "file.py:Class"

    def load(self, base: type[Kind], setting: str) -> Kind:
        """Runs the user's code."""
        chosen = load_object(self.kind, what=setting)
        if not (isinstance(chosen, type) and issubclass(chosen, base)):
            raise ConfigError(f"{setting}={self.kind} must be a class derived from {base.__name__}")
        try:
            return chosen.model_validate(self.model_dump())
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise ConfigError(f"{setting}={self.kind}: {problems}") from None


def known(base: type[Kind], package: str) -> dict[str, type[Kind]]:
    """The classes derived from `base` in the modules of a package, by their kind."""
    folder = importlib.import_module(package)
    classes: dict[str, type[Kind]] = {}
    for module in pkgutil.iter_modules(folder.__path__):
        for value in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, base) and value is not base:
                classes[value.model_fields["kind"].default] = value
    return classes


def one_of(base: type[Choice], role: str, classes: Mapping[str, type[Choice]]) -> Any:
    """The type of a setting that holds one of `classes`, or one from a file of the user's."""

    def tag(value: Any) -> str | None:
        kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
        return FromFile.TAG if isinstance(kind, str) and ":" in kind else kind

    def validate(value: Any, handler: Any) -> Any:
        if isinstance(value, base):
            return value
        return handler({"kind": value} if isinstance(value, str) else value)

    class OfRole(FromFile):
        kind: Annotated[str, Code(role)] = ""

    members = [Annotated[item, Tag(kind)] for kind, item in classes.items()]
    members.append(Annotated[OfRole, Tag(FromFile.TAG)])
    union = Annotated[Union[tuple(members)], Discriminator(tag)]  # noqa: UP007
    return Annotated[SerializeAsAny[union], WrapValidator(validate)]
