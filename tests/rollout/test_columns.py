"""Linear layers by columns: the same products, and layers that are as they were afterwards."""

import pytest
import torch
from torch import nn

from groupwise.rollout.native.columns import FEW, MANY, ByColumns, by_columns
from small_models import FAMILIES, random_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, FEW, 9, MANY + 1])
def test_logits_are_the_same(family: str, rows: int) -> None:
    model = random_model(family)
    tokens = torch.arange(3, 3 + rows)[:, None] % 60
    with torch.no_grad():
        expected = model(tokens).logits
        with by_columns(model):
            found = model(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5)
    assert not any(isinstance(module, ByColumns) for module in model.modules())


@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_really_go_the_other_way(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(5, 7, bias=bias)
    x = torch.randn(2, 3, 5)
    with torch.no_grad():
        expected = linear(x)
        monkeypatch.delattr(torch.nn.functional, "linear")
        with by_columns(nn.Sequential(linear)):
            found = linear(x)
    assert found.is_contiguous() and torch.allclose(found, expected, atol=1e-6)


def test_layers_come_back_when_sampling_fails() -> None:
    linear = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), by_columns(nn.Sequential(linear)):
        raise RuntimeError
    assert type(linear) is nn.Linear
