"""The policy gradient itself."""

from typing import ClassVar

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms


class Reinforce(Surrogate):
    """-A log pi: blind to how far the policy has moved."""

    own_ratio: ClassVar[str] = "no ratio"

    kind: str = "reinforce"

    def loss(self, x: Terms) -> Tensor:
        return -x.advantages * x.logprobs_BT

    def formula(self) -> str:
        return "−A·log π"
