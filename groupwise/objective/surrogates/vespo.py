"""VESPO's surrogate: the weight of a whole answer, damped smoothly."""

import math
from typing import ClassVar

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms

LOG_WEIGHT_MIN, LOG_WEIGHT_MAX = math.log(1e-8), 20.0


class Vespo(Surrogate):
    """-phi(w) A log pi, w the answer's whole ratio, phi(w) = w^k exp(lambda (1 - w)), detached.

    w is the product of the tokens' ratios, not their geometric mean; the sampler mismatch is part
    of it, so that phi damps both kinds of distance at once.
    """

    own_ratio: ClassVar[str] = "its own sequence weight"
    corrects_mismatch: ClassVar[bool] = True

    kind: str = "vespo"
    vespo_k_positive: float = 2.0
    """VESPO's k where the advantage is not negative."""
    vespo_lambda_positive: float = 3.0
    """VESPO's lambda where the advantage is not negative."""
    vespo_k_negative: float = 3.0
    """VESPO's k where the advantage is negative."""
    vespo_lambda_negative: float = 2.0
    """VESPO's lambda where the advantage is negative."""

    def loss(self, x: Terms) -> Tensor:
        log_w_B1 = (x.log_ratio_BT.detach() * x.mask_BT).sum(-1, keepdim=True)
        if x.rho is not None:
            log_rho = x.rho.log().clamp(LOG_WEIGHT_MIN, LOG_WEIGHT_MAX)
            log_w_B1 = log_w_B1 + log_rho.sum(-1, keepdim=True)
        log_w_B1 = log_w_B1.clamp(LOG_WEIGHT_MIN, LOG_WEIGHT_MAX)
        k = self._by_sign(x, self.vespo_k_positive, self.vespo_k_negative)
        weight = self._by_sign(x, self.vespo_lambda_positive, self.vespo_lambda_negative)
        phi = (weight + k * log_w_B1 - weight * log_w_B1.exp()).exp()
        return -phi * x.advantages * x.logprobs_BT

    @staticmethod
    def _by_sign(x: Terms, positive: float, negative: float) -> Tensor:
        # torch.where on two Python numbers would round them to float32 whatever the inputs are.
        chosen = x.log_ratio_BT.new_full(x.advantages.shape, negative)
        return chosen.masked_fill(x.advantages >= 0, positive)

    def formula(self) -> str:
        return "−φ(w)·A·log π, w the whole answer's ratio"
