"""CISPO's surrogate: clipped importance weights."""

from pydantic import Field

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms


class Cispo(Surrogate):
    """-stop_grad(min(r, max)) A log pi: a far token's weight is bounded, it is never dropped."""

    kind: str = "cispo"
    cispo_max: float = Field(default=5.0, gt=0)
    """CISPO's own bound on the (detached) ratio."""

    def loss(self, x: Terms) -> Tensor:
        return -x.ratio.detach().clamp(max=self.cispo_max) * x.advantages * x.logprobs_BT

    def formula(self) -> str:
        return f"−min(r, {self.cispo_max:g})·A·log π, the ratio without gradient"

    def clip_edges(self) -> tuple[float, float]:
        return 0.0, self.cispo_max
