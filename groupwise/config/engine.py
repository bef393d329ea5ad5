"""What samples answers, where, and when: three settings that combine freely.

engine: native      place: {kind: processes, count: 2}      timing: {kind: ahead}
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from groupwise.config.addresses import TokenVariable, check_server_url
from groupwise.config.base import Settings
from groupwise.extensions import Code


class EngineSettings(Settings):
    """What every engine has."""

    max_batch: int = Field(default=256, ge=1)
    """Answers sampled at once, if memory allows; of several processes or servers, by each."""


class AutoEngine(EngineSettings):
    """The native engine where it can serve the model, else transformers."""

    kind: Literal["auto"] = "auto"


class NativeEngineSettings(EngineSettings):
    """Our own: continuous batching over KV pages."""

    kind: Literal["native"] = "native"


class TransformersEngineSettings(EngineSettings):
    """The model's own `generate`: slower, and serves whatever transformers can run."""

    kind: Literal["transformers"] = "transformers"


class VllmEngineSettings(EngineSettings):
    """vLLM. Extra: groupwise[vllm]. Servers that run already have settings of their own."""

    kind: Literal["vllm"] = "vllm"
    memory_share: float = Field(default=0.4, gt=0, lt=1)
    """Share of the device's memory for its weights and its cache."""
    sleep: bool = True
    """In the trainer's process, on CUDA: give that memory back while the model is trained."""
    eager: bool = False
    """No compilation, no CUDA graphs; starts faster and samples slower."""


class OwnEngine(EngineSettings):
    """An engine of yours, `file.py:Class`: called with the policy and the config."""

    kind: Annotated[str, Code("engine")]


OWN = "file.py:Class"


def kind_of(default: str, **fields: str) -> Discriminator:
    """Which class settings are of: their `kind`, or the one that alone has such a field."""

    def tag(value: Any) -> Any:
        if isinstance(value, Mapping):
            named = [kind for field, kind in fields.items() if field in value]
            kind = value.get("kind", named[0] if named else default)
        else:
            kind = getattr(value, "kind", None)
        return OWN if isinstance(kind, str) and ":" in kind else kind

    return Discriminator(tag)


AnyEngine = Annotated[
    Annotated[AutoEngine, Tag("auto")]
    | Annotated[NativeEngineSettings, Tag("native")]
    | Annotated[TransformersEngineSettings, Tag("transformers")]
    | Annotated[VllmEngineSettings, Tag("vllm")]
    | Annotated[OwnEngine, Tag(OWN)],
    kind_of("auto"),
]


class Here(Settings):
    """In the trainer's process."""

    kind: Literal["here"] = "here"


class Processes(Settings):
    """In processes that the trainer starts on its own machine."""

    kind: Literal["processes"] = "processes"
    count: int = Field(default=1, ge=1, le=64)
    """How many. On GPUs each gets one, other than the trainer's where there are others."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds to wait for a reply before a process counts as gone and is started again."""


class Servers(Settings):
    """In servers that run already: `groupwise serve rollouts`, of vllm `groupwise serve vllm`."""

    kind: Literal["servers"] = "servers"
    urls: tuple[str, ...] = Field(min_length=1)
    """Where they listen, such as http://10.0.0.2:8660."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds to wait for a reply before a server counts as gone and its work goes to another."""
    token_env: TokenVariable = "GROUPWISE_TOKEN"
    """The environment variable that holds their token."""

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            check_server_url(url)
        if len(set(value)) < len(value):
            raise ValueError(f"each address may be named once, not {list(value)}")
        return value


AnyPlace = Annotated[
    Annotated[Here, Tag("here")]
    | Annotated[Processes, Tag("processes")]
    | Annotated[Servers, Tag("servers")],
    kind_of("here", count="processes", urls="servers"),
]


class InTurn(Settings):
    """A step is sampled when the one before it has been learned from: never stale."""

    kind: Literal["in_turn"] = "in_turn"

    @property
    def max_staleness(self) -> int:
        return 0


class Ahead(Settings):
    """Later steps are sampled while a step is learned from; which weights sample a step depends on
    its number alone, so a run can be repeated exactly."""

    kind: Literal["ahead"] = "ahead"
    max_staleness: int = Field(default=1, ge=1)
    """Most updates that the weights behind an answer may lack."""
    publish_every: int = Field(default=1, ge=1)
    """Updates between two sets of weights that the engine gets."""

    @model_validator(mode="after")
    def _bound_can_be_kept(self) -> "Ahead":
        if self.publish_every > self.max_staleness + 1:
            raise ValueError(
                f"with publish_every={self.publish_every} answers are up to "
                f"{self.publish_every - 1} updates old: raise max_staleness "
                f"({self.max_staleness}) to that, or lower publish_every"
            )
        return self

    def version_for(self, step: int) -> int:
        """Which weights, counted in updates, sample step number `step` (from 0).

        A function of the step alone: never of how fast anything was, so that a run can be repeated
        and resumed exactly. step - version_for(step) is at most max_staleness.
        """
        ahead = self.max_staleness - (self.publish_every - 1)
        behind = max(0, step - ahead)
        return behind - behind % self.publish_every

    def publishes(self, version: int, first: int, steps: int) -> bool:
        """Whether the engine gets this version, in a run that goes from step `first` to `steps`."""
        last = max(first, self.version_for(steps - 1))
        return version <= last and (version == first or version % self.publish_every == 0)


class InFlight(Settings):
    """Answers go on while weights change under them; a step takes the groups that end first."""

    kind: Literal["in_flight"] = "in_flight"
    max_staleness: int = Field(default=4, ge=1)
    """Most updates that the oldest weights behind an answer may lack."""
    unfinished: Literal["recycle", "drop"] = "recycle"
    """Answers that would become too old: go on from their tokens later, or begin anew."""


AnyTiming = Annotated[
    Annotated[InTurn, Tag("in_turn")]
    | Annotated[Ahead, Tag("ahead")]
    | Annotated[InFlight, Tag("in_flight")],
    kind_of("in_turn", max_staleness="ahead", publish_every="ahead", unfinished="in_flight"),
]


def staleness_in(data: Any) -> int:
    """`max_staleness` of a timing that is still to be validated; 0 where it cannot be."""
    try:
        timing: InTurn | Ahead | InFlight = TypeAdapter(AnyTiming).validate_python(
            {"kind": data} if isinstance(data, str) else data or {}
        )
    except ValidationError:
        return 0
    return timing.max_staleness


def check_vllm_place(engine: Settings, place: AnyPlace) -> None:
    """Refuse what is for vLLM in the trainer's process where servers decide it."""
    unused = {"servers": ("memory_share", "sleep", "eager"), "processes": ("sleep",)}
    for name in unused.get(place.kind, ()):
        if getattr(engine, name) != type(engine).model_fields[name].default:
            raise ValueError(
                f"engine.{name} is for vLLM in the trainer's process: with place={place.kind} the "
                "servers decide it"
            )
