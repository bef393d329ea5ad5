"""What we rely on in PEFT beyond its public interface."""

import pytest
import torch
from torch import nn

from groupwise.compat.peft import linear_with_adapter


@pytest.fixture
def layer() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    model = nn.ModuleDict({"q_proj": nn.Linear(8, 6)})
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(model, config)  # pyright: ignore[reportArgumentType]
    return model["q_proj"]


def test_a_layer_of_lora_says_what_it_computes_with(layer: nn.Module) -> None:
    known = linear_with_adapter(layer)
    assert known is not None and known.down is not None and known.up is not None
    assert known.scaling == 3.0 and known.base.weight.shape == (6, 8)
    x = torch.randn(4, 8)
    added = known.scaling * x @ known.down.T @ known.up.T
    assert torch.allclose(known.base(x) + added, layer(x), atol=1e-6)
    assert {id(known.down), id(known.up)} <= {id(weight) for weight in layer.parameters()}


def test_what_computes_something_else_is_not_taken_for_it(layer: nn.Module) -> None:
    for name in ("lora_variant", "lora_bias", "fan_in_fan_out", "merged", "disable_adapters"):
        assert hasattr(layer, name), name
    layer.enable_adapters(False)  # pyright: ignore[reportCallIssue]
    assert linear_with_adapter(layer) is None
    layer.enable_adapters(True)  # pyright: ignore[reportCallIssue]
    assert linear_with_adapter(layer) is not None
    layer.merge()  # pyright: ignore[reportCallIssue]
    assert linear_with_adapter(layer) is None
    assert linear_with_adapter(nn.Embedding(2, 3)) is None
