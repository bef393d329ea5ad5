"""SAPO's surrogate: a soft gate in place of a clip."""

from pydantic import Field

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms


class Sapo(Surrogate):
    """-(4 / tau) sigmoid(tau (r - 1)) A: steeper where A is negative."""

    kind: str = "sapo"
    sapo_tau_positive: float = Field(default=1.0, gt=0)
    """SAPO's gate temperature where the advantage is positive."""
    sapo_tau_negative: float = Field(default=1.05, gt=0)
    """SAPO's gate temperature elsewhere."""

    def loss(self, x: Terms) -> Tensor:
        tau = x.ratio.new_full(x.advantages.shape, self.sapo_tau_negative)
        tau = tau.masked_fill(x.advantages > 0, self.sapo_tau_positive)
        return -(4 / tau) * (tau * (x.ratio - 1)).sigmoid() * x.advantages

    def formula(self) -> str:
        return "−(4/τ)·sigmoid(τ(r − 1))·A"
