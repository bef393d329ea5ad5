"""Dynamic loss scaling for fp16, whose smallest numbers are too large for most gradients.

The loss is multiplied before the backward pass and the gradient divided after it. A gradient that
overflows is thrown away and the scale halved; after many that did not, it is doubled.
"""

from dataclasses import dataclass

GROW_AFTER = 2000
"""Optimizer steps without an overflow."""


@dataclass
class LossScale:
    value: float = 2.0**16
    clean: int = 0

    def after_step(self, finite: bool) -> None:
        if not finite:
            self.value, self.clean = max(self.value / 2, 1.0), 0
            return
        self.clean += 1
        if self.clean >= GROW_AFTER:
            self.value, self.clean = self.value * 2, 0
