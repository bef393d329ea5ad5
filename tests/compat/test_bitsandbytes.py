"""What we rely on in bitsandbytes beyond its public interface."""

import pytest
import torch

from groupwise.compat.bitsandbytes import keep_4_bit_layout
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


def test_4_bit_layers_stay_as_they_lie_on_a_cpu_with_bf16() -> None:
    from inspect import getsource

    nn = pytest.importorskip("bitsandbytes").nn
    assert "self.support_avx512bf16_for_cpu" in getsource(nn.Linear4bit.forward)
    layer = nn.Linear4bit(64, 33, bias=False, quant_type="nf4").to("cpu").eval()
    layer.support_avx512bf16_for_cpu = True  # as on such a CPU
    keep_4_bit_layout(layer)
    lies = layer.weight.data_ptr()
    with torch.no_grad():
        assert layer(torch.randn(2, 64)).shape == (2, 33)
    assert layer.weight.data_ptr() == lies
