"""The objective as a value: one choice along each axis of the algebra, and the named presets.

No torch here, so that recipes are read and checked in milliseconds. The functions that give these
names a meaning are in the other files of this folder; a surrogate and an advantage estimator are
classes with settings of their own, which may also be written directly under `algorithm`:
`algorithm.clip_high=0.28` is `algorithm.surrogate.clip_high=0.28`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.choice import Choice, FromFile, chosen_block, one_of
from groupwise.errors import ConfigError, type_name
from groupwise.objective.advantages import ADVANTAGES, AdvantageEstimator
from groupwise.objective.advantages.group import GroupAdvantage
from groupwise.objective.surrogates import SURROGATES, Surrogate
from groupwise.objective.surrogates.clip import Clip

if TYPE_CHECKING:
    AnySurrogate = Surrogate
    AnyAdvantage = AdvantageEstimator
else:
    AnySurrogate = one_of(Surrogate, SURROGATES)
    AnyAdvantage = one_of(AdvantageEstimator, ADVANTAGES)


class Objective(BaseModel):
    """What GRPO optimises: ratio x surrogate x aggregation x advantage x KL x corrections."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    preset: str = "grpo"
    """The named starting point; every other field here can override a part of it."""

    surrogate: AnySurrogate = Clip()
    """How ratio and advantage make a per-token loss: a kind, or `file.py:Class` of your own."""
    advantage: AnyAdvantage = GroupAdvantage()
    """How rewards become advantages: a kind, or `file.py:Class` of your own."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of each token, or of the whole answer (geometric mean over its tokens)."""
    aggregate: Literal[
        "sequence_mean", "token_mean", "fixed_length", "sequence_sum", "microbatch_token_mean"
    ] = "sequence_mean"
    """How token losses become one number. The last depends on micro-batching; for parity only."""

    kl_weight: float = Field(default=0.0, ge=0)
    """Beta. 0 switches KL off, and the reference model is then never loaded."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """The per-token estimator of KL(policy || reference)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add KL to the loss, or take it off each answer's reward."""
    kl_unbiased: bool = False
    """Multiply the loss's KL term by the ratio, so that its gradient is the reverse KL's."""

    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for mean token entropy (with entropy_target: where the adaptive weight starts)."""
    entropy_target: float | None = Field(default=None, gt=0)
    """Adapt the bonus: raise its weight while entropy is under this, lower it while above."""
    entropy_delta: float = Field(default=0.0001, gt=0)
    """By how much the adaptive weight moves at a step."""
    entropy_weight_max: float = Field(default=0.01, gt=0)
    """The adaptive weight's upper bound."""

    mismatch: Literal["none", "token", "sequence"] = "none"
    """Correct for sampler and trainer probabilities that differ, by token or by answer."""
    mismatch_mode: Literal["truncate", "mask"] = "truncate"
    """Clamp the correction into its bounds, or drop what lies outside them."""
    mismatch_min: float = Field(default=0.0, ge=0)
    """Lower bound of the correction."""
    mismatch_max: float = Field(default=3.0, gt=0)
    """Upper bound of the correction."""
    mask_truncated: bool = False
    """Answers cut off by the length limit carry no loss."""
    top_entropy: float = Field(default=1.0, gt=0, le=1)
    """Learn only from this share of tokens, those of highest entropy."""
    off_policy_limit: float | None = Field(default=None, gt=0)
    """Drop answers of negative advantage whose mean (sampler - policy) log-prob exceeds this."""

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"preset": data}
        if not isinstance(data, Mapping):
            return data
        name = data.get("preset", "grpo")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"unknown preset {name!r:.100}; there are: {', '.join(PRESETS)}")
        tree = {**PRESETS[name], **data}
        for field, classes in (("surrogate", SURROGATES), ("advantage", ADVANTAGES)):
            start = PRESETS[name].get(field, {"kind": cls.model_fields[field].default.kind})
            tree[field] = chosen_block(tree, data.get(field, {}), start, classes)
        return tree

    @model_validator(mode="after")
    def _reject_mixes_without_meaning(self) -> "Objective":
        own_ratio = getattr(self.surrogate, "own_ratio", "")
        if self.ratio == "sequence" and own_ratio:
            raise ValueError(
                f"surrogate {self.surrogate.kind} uses {own_ratio}: set ratio to token"
            )
        if self.kl_unbiased and not self.kl_in_loss:
            raise ValueError(
                "kl_unbiased corrects KL in the loss: set kl_in to loss and kl_weight above 0"
            )
        if self.entropy_target is not None and self.entropy_weight > self.entropy_weight_max:
            raise ValueError(
                f"entropy_weight {self.entropy_weight} is above entropy_weight_max: lower it"
            )
        low, high = self.mismatch_min, self.mismatch_max
        if low >= high:
            raise ValueError(f"mismatch_min {low} must be below mismatch_max {high}")
        return self

    def loaded(self) -> "Objective":
        """With classes of the user's own in place of their names. Runs the user's code."""
        parts = {"surrogate": self.surrogate, "advantage": self.advantage}
        loaded = {
            name: part.load(f"algorithm.{name}")
            for name, part in parts.items()
            if isinstance(part, FromFile)
        }
        return self.model_copy(update=loaded)

    def using(self, part: Choice) -> "Objective":
        """With another surrogate or advantage estimator: an object, from Python."""
        for name, base in (("surrogate", Surrogate), ("advantage", AdvantageEstimator)):
            if isinstance(part, base):
                return self.model_copy(update={name: part})
        raise ConfigError(
            f"algorithm must be a Surrogate or an AdvantageEstimator, not {type_name(part)}"
        )

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    @property
    def kl_in_reward(self) -> bool:
        return self.needs_reference and self.kl_in == "reward"

    @property
    def kl_in_loss(self) -> bool:
        return self.needs_reference and self.kl_in == "loss"

    @property
    def uses_entropy(self) -> bool:
        """Whether the gradient goes through entropy, so that it must be kept in the graph."""
        return self.entropy_weight > 0 or self.entropy_target is not None


_CLIP_HIGHER = {"kind": "clip", "clip_high": 0.28}
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {"surrogate": _CLIP_HIGHER, "aggregate": "token_mean"},
    "bnpo": {"surrogate": _CLIP_HIGHER, "aggregate": "microbatch_token_mean"},
    "dr_grpo": {"aggregate": "fixed_length", "advantage": {"kind": "group", "scale": "none"}},
    "gspo": {
        "ratio": "sequence",
        "surrogate": {"kind": "clip", "clip_low": 3e-4, "clip_high": 4e-4},
    },
    "luspo": {"ratio": "sequence", "aggregate": "sequence_sum"},
    "cispo": {"surrogate": {"kind": "cispo"}, "aggregate": "token_mean"},
    "sapo": {"surrogate": {"kind": "sapo"}},
    "vespo": {"surrogate": {"kind": "vespo"}, "aggregate": "token_mean"},
    "gmpo": {"surrogate": {"kind": "gmpo"}},
    "gdpo": {"advantage": {"kind": "gdpo"}},
    "rloo": {"advantage": {"kind": "group", "baseline": "leave_one_out", "scale": "none"}},
    "reinforce": {"surrogate": {"kind": "reinforce"}, "aggregate": "token_mean"},
}
