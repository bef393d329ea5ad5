"""GMPO's surrogate: the geometric mean of clipped token ratios."""

import math
from typing import ClassVar

from pydantic import Field

from groupwise.objective.surrogates.base import Surrogate, Tensor, Terms


class Gmpo(Surrogate):
    """-A times the geometric mean of token ratios, each bounded on the side that A pushes towards.

    The paper's min(s l, clip(s l, -c, c)), l the log ratio and s the sign of A, is min(s l, c).
    """

    own_ratio: ClassVar[str] = "the geometric mean of clipped token ratios"

    kind: str = "gmpo"
    gmpo_clip: float = Field(default=0.4, gt=0)
    """GMPO's clip range, in log space."""

    def loss(self, x: Terms) -> Tensor:
        sign = x.advantages.sign()
        bounded_BT = sign * (sign * x.log_ratio_BT).clamp(max=self.gmpo_clip)
        count_B1 = x.mask_BT.sum(-1, keepdim=True).clamp(min=1)
        mean_B1 = (bounded_BT * x.mask_BT).sum(-1, keepdim=True) / count_B1
        return -mean_B1.exp() * x.advantages

    def formula(self) -> str:
        return "−A·geometric mean of the answer's bounded ratios"

    def clip_edges(self) -> tuple[float, float]:
        return math.exp(-self.gmpo_clip), math.exp(self.gmpo_clip)
