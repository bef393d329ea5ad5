"""How a model's decoder layers are computed while it is trained: compiled, in 8 bits."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from groupwise.config import Config
from groupwise.policy.compiled import compiled_layers, compiles_training
from groupwise.policy.fp8 import fp8_products


@dataclass(frozen=True)
class TrainingLayers:
    compiled: bool = False
    fp8: bool = False

    @contextmanager
    def in_use(self, model: Any) -> Iterator[None]:
        """While this is open, forward and backward passes compute the model's layers so."""
        products = fp8_products(model) if self.fp8 else nullcontext()
        with products, compiled_layers(model, self.compiled):
            yield


PLAIN = TrainingLayers()


def training_layers(device: torch.device, config: Config) -> TrainingLayers:
    return TrainingLayers(compiles_training(device, config), config.trains_in_fp8)
