"""The objective as a value: one choice along each axis of the algebra, and the named presets.

No torch here, so that recipes are read and checked in milliseconds. The functions that give these
names a meaning are in the other files of this folder, one file to an axis.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.errors import quoted


class Objective(BaseModel):
    """What GRPO optimises: ratio x surrogate x aggregation x advantage x KL x corrections."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    preset: str = "grpo"
    """The named starting point; every other field here can override a part of it."""

    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of each token, or of the whole answer (geometric mean over its tokens)."""
    surrogate: Literal["clip", "reinforce", "cispo", "sapo", "vespo", "gmpo"] = "clip"
    """How ratio and advantage make a per-token loss."""
    aggregate: Literal[
        "sequence_mean", "token_mean", "fixed_length", "sequence_sum", "microbatch_token_mean"
    ] = "sequence_mean"
    """How token losses become one number. The last depends on micro-batching; for parity only."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What an answer must beat: its group's mean, or the mean of the others."""
    scale: Literal["group", "batch", "none"] = "group"
    """Which standard deviation advantages are divided by."""
    per_reward: bool = False
    """GDPO: z-score each reward within its group, sum by weight, then whiten over the batch."""

    clip_low: float = Field(default=0.2, ge=0)
    """Ratios below 1 - clip_low stop pushing an answer down."""
    clip_high: float = Field(default=0.2, ge=0)
    """Ratios above 1 + clip_high stop pushing an answer up."""
    clip_max: float | None = Field(default=None, gt=1)
    """Two-sided clipping (delta): an upper bound on the ratio where the advantage is negative."""
    cispo_max: float = Field(default=5.0, gt=0)
    """CISPO's own bound on the (detached) ratio."""
    sapo_tau_positive: float = Field(default=1.0, gt=0)
    """SAPO's gate temperature where the advantage is positive."""
    sapo_tau_negative: float = Field(default=1.05, gt=0)
    """SAPO's gate temperature elsewhere."""
    vespo_positive: tuple[float, float] = (2.0, 3.0)
    """VESPO's (k, lambda) where the advantage is not negative."""
    vespo_negative: tuple[float, float] = (3.0, 2.0)
    """VESPO's (k, lambda) where the advantage is negative."""
    gmpo_clip: float = Field(default=0.4, gt=0)
    """GMPO's clip range, in log space."""

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
            shown = quoted(str(name))
            raise ValueError(f"unknown preset {shown}; there are: {', '.join(PRESETS)}")
        return {**PRESETS[name], **data}

    @model_validator(mode="after")
    def _reject_mixes_without_meaning(self) -> "Objective":
        def refuse(condition: bool, why: str) -> None:
            if condition:
                raise ValueError(why)

        own_level = {"reinforce": "no ratio", "vespo": "its own sequence weight"}
        refuse(
            self.ratio == "sequence" and self.surrogate in own_level,
            f"surrogate {self.surrogate} uses {own_level.get(self.surrogate)}: set ratio to token",
        )
        refuse(
            self.ratio == "sequence" and self.surrogate == "gmpo",
            "gmpo takes the geometric mean of clipped token ratios itself: set ratio to token",
        )
        refuse(
            self.clip_max is not None and self.surrogate != "clip",
            f"clip_max belongs to surrogate clip, not {self.surrogate}: remove it",
        )
        refuse(
            self.per_reward and self.baseline == "leave_one_out",
            "per_reward z-scores each reward in its group: use baseline mean",
        )
        refuse(
            self.kl_unbiased and (self.kl_in == "reward" or self.kl_weight == 0),
            "kl_unbiased corrects KL in the loss: set kl_in to loss and kl_weight above 0",
        )
        refuse(
            self.entropy_target is not None and self.entropy_weight > self.entropy_weight_max,
            f"entropy_weight {self.entropy_weight} is above entropy_weight_max: lower it",
        )
        refuse(
            self.mismatch_min >= self.mismatch_max,
            f"mismatch_min {self.mismatch_min} must be below mismatch_max {self.mismatch_max}",
        )
        return self

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    @property
    def uses_entropy(self) -> bool:
        """Whether the gradient goes through entropy, so that it must be kept in the graph."""
        return self.entropy_weight > 0 or self.entropy_target is not None


PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {"clip_high": 0.28, "aggregate": "token_mean"},
    "bnpo": {"clip_high": 0.28, "aggregate": "microbatch_token_mean"},
    "dr_grpo": {"aggregate": "fixed_length", "scale": "none"},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "luspo": {"ratio": "sequence", "aggregate": "sequence_sum"},
    "cispo": {"surrogate": "cispo", "aggregate": "token_mean"},
    "sapo": {"surrogate": "sapo"},
    "vespo": {"surrogate": "vespo", "aggregate": "token_mean"},
    "gmpo": {"surrogate": "gmpo"},
    "rloo": {"baseline": "leave_one_out", "scale": "none"},
    "reinforce": {"surrogate": "reinforce", "aggregate": "token_mean"},
}
