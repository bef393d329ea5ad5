"""CISPO's surrogate: clipped importance weights."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from groupwise.objective.surrogates.base import Surrogate, Terms

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(Surrogate):
    """-stop_grad(min(r, max)) A log pi: a far token's weight is bounded, it is never dropped."""

    trl_fields: ClassVar[Mapping[str, str]] = {"cispo_max": "epsilon_high"}
    trl_loss_types: ClassVar[Mapping[str, str]] = {"token_mean": "cispo"}

    kind: str = "cispo"
    cispo_max: float = Field(default=5.0, gt=0)
    """CISPO's own bound on the (detached) ratio."""

    def loss(self, x: Terms) -> "Tensor":
        weight = x.ratio.detach().clamp(max=self.cispo_max)
        return -weight * x.advantages * x.logprobs_BT

    def formula(self) -> str:
        return f"−min(r, {self.cispo_max:g})·A·log π, the ratio without gradient"

    def clip_edges(self) -> tuple[float, float]:
        return 0.0, self.cispo_max
