"""Weights laid out for a few rows at a time, while sampling on a CPU.

A linear layer stores (out, in) and multiplies by the transpose of that. With the few rows of a
decode step, matrix libraries are 1.2 to 2 times faster when the transpose itself is what lies in
memory in order. So sampling works on such copies: the same numbers under the same names, made anew
for each rollout and gone after it. Making them takes as long as a few decode steps, so short
answers go without.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

WORTHWHILE = 16
"""Tokens of an answer from which on the copies pay for themselves."""


@contextmanager
def laid_out_for_decoding(model: Any, max_tokens: int) -> Iterator[None]:
    """Plain linear layers on the CPU only. Tied embeddings stay: they are also looked up by row."""
    if max_tokens < WORTHWHILE:
        yield
        return
    tied = model.get_input_embeddings().weight
    weights = {
        id(module.weight): module.weight
        for module in model.modules()
        if type(module) is nn.Linear and module.weight is not tied and _plain(module.weight)
    }
    before = [weight.data for weight in weights.values()]
    try:
        for weight in weights.values():
            weight.data = weight.data.t().contiguous().t()
        yield
    finally:
        for weight, data in zip(weights.values(), before, strict=True):
            weight.data = data


def _plain(weight: torch.Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.is_contiguous()
