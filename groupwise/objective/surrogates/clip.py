"""PPO's and GRPO's clipped surrogate."""

from pydantic import Field

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms


class Clip(Surrogate):
    """-min(r A, clip(r, 1 - low, 1 + high) A). Outside of the edges, no further push."""

    kind: str = "clip"
    clip_low: float = Field(default=0.2, ge=0)
    """Ratios below 1 - clip_low stop pushing an answer down."""
    clip_high: float = Field(default=0.2, ge=0)
    """Ratios above 1 + clip_high stop pushing an answer up."""
    clip_max: float | None = Field(default=None, gt=1)
    """Two-sided clipping (delta): an upper bound on the ratio where the advantage is negative,
    which the minimum leaves unbounded."""

    def loss(self, x: Terms) -> Tensor:
        ratio = x.ratio if self.clip_max is None else x.ratio.clamp(max=self.clip_max)
        clipped = x.ratio.clamp(*self.clip_edges())
        return -(ratio * x.advantages).minimum(clipped * x.advantages)

    def formula(self) -> str:
        low, high = self.clip_edges()
        return f"−min(r·A, clip(r, {low:g}, {high:g})·A)"

    def clip_edges(self) -> tuple[float, float]:
        return 1 - self.clip_low, 1 + self.clip_high
