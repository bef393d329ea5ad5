"""What a surrogate is: how ratio and advantage make a loss. Each is a small class in its own file.

    class Mine(Surrogate):
        kind: str = "mine"
        strength: float = 1.0
        '''What `algorithm.strength` sets.'''

        def loss(self, x: Terms) -> Tensor:
            return -self.strength * x.ratio * x.advantages

        def formula(self) -> str:
            return f"−{self.strength:g}·r·A"

With r the ratio and A the advantage, summed over an answer's tokens all of ours have the gradient
-A grad log pi(answer) at r = 1; they differ in what they do as r moves away from it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from groupwise.choice import Choice
from groupwise.extensions import extension

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # reading a recipe does not import torch: surrogates call tensors' own methods


@dataclass(frozen=True)
class Terms:
    """What a surrogate may use. A shape without letters is (B, T), or (B, 1): one per answer."""

    logprobs_BT: Tensor
    log_ratio_BT: Tensor
    ratio: Tensor
    advantages: Tensor
    mask_BT: Tensor
    rho: Tensor | None = None
    """The sampler mismatch. Unless a surrogate corrects for it, it weighs the loss afterwards."""


@extension("surrogate")
class Surrogate(Choice):
    """The per-token loss, and what others need to know about it."""

    own_ratio: ClassVar[str] = ""
    """Why `ratio: sequence` makes no sense with it, if it makes none: what it uses instead."""
    corrects_mismatch: ClassVar[bool] = False
    """Whether `loss` takes `rho` into account itself."""

    def loss(self, x: Terms) -> Tensor:
        """Of every token, (B, T), or of every answer, (B, 1), before any mask or mean."""
        raise TypeError(f"{type(self).__name__} must define loss(self, x)")

    def formula(self) -> str:
        """The loss as `groupwise explain` prints it."""
        return self.kind

    def clip_edges(self) -> tuple[float, float] | None:
        """The ratios past which it stops following the ratio (None: it has no such edge)."""
        return None
