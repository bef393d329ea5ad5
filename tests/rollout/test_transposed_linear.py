"""Linear layers as weight @ x.T: the same outputs, and layers that are as they were afterwards."""

import pytest
import torch
from torch import nn

from groupwise.rollout.native.transposed_linear import (
    MAX_ROWS,
    MIN_ROWS,
    TransposedLinear,
    use_transposed_linear,
)
from small_models import FAMILIES, random_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, MIN_ROWS, 9, MAX_ROWS + 1])
def test_logits_are_the_same(family: str, rows: int) -> None:
    model = random_model(family)
    tokens = torch.arange(3, 3 + rows)[:, None] % 60
    with torch.no_grad():
        expected = model(tokens).logits
        with use_transposed_linear(model):
            transposed = model(tokens).logits
    assert torch.allclose(transposed, expected, atol=1e-5)
    assert not any(isinstance(module, TransposedLinear) for module in model.modules())


@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_really_take_the_transposed_product(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = nn.Linear(5, 7, bias=bias)
    x = torch.randn(2, 3, 5)
    with torch.no_grad():
        expected = linear(x)
        monkeypatch.delattr(torch.nn.functional, "linear")
        with use_transposed_linear(nn.Sequential(linear)):
            transposed = linear(x)
    assert torch.allclose(transposed, expected, atol=1e-6)
    assert transposed.flatten(0, 1).t().is_contiguous()


def test_layers_come_back_when_sampling_fails() -> None:
    linear = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), use_transposed_linear(nn.Sequential(linear)):
        raise RuntimeError
    assert type(linear) is nn.Linear
