"""What we rely on in bitsandbytes beyond its public interface."""

import pytest
import torch

from groupwise.policy.quantization import weight_bytes, weight_count
from groupwise.training.optim import MOMENTS


def test_a_4_bit_weight_says_its_shape_and_scales() -> None:
    nn = pytest.importorskip("bitsandbytes").nn
    layer = nn.Linear4bit(64, 32, bias=False, quant_type="nf4", compress_statistics=True)
    weight = layer.to("cpu").weight
    if getattr(weight, "quant_state", None) is None:
        weight = weight._quantize("cpu")
    assert weight.quant_state.shape == torch.Size([32, 64])
    assert weight.quant_state.absmax is not None and weight.quant_state.state2 is not None
    assert weight_count(weight) == 32 * 64
    assert weight_bytes(weight) > 32 * 64 // 2


def test_the_8_bit_optimizer_names_its_state_as_checkpoints_do() -> None:
    from inspect import getsource

    optim = pytest.importorskip("bitsandbytes").optim
    source = getsource(optim.optimizer.Optimizer2State)
    for name in MOMENTS["adamw_8bit"]:
        assert f'"{name}"' in source, name
