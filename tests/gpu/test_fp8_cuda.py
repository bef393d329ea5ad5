"""Products in 8 bits by the GPU's own instructions, for any number of rows, compiled too."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from groupwise.policy.fp8 import check_fp8, product, quantized
from groupwise.policy.training_layers import TrainingLayers
from groupwise.recipe import parse
from groupwise.training import update
from small_models import random_groups, random_policy
from updates import accumulate

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper GPU")]


def dequantized(x: Tensor) -> Tensor:
    values, scales = quantized(x)
    return values.double() * scales.double()


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 16384])
def test_a_product_adds_up_what_was_quantized(rows: int) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(n, 1536, device="cuda", dtype=torch.bfloat16) for n in (rows, 8960))
    right = dequantized(x) @ dequantized(weight).t()
    assert (product(x, weight).double() - right).norm() / right.norm() < 2**-8


def test_compiled_layers_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy("qwen2", dtype=torch.bfloat16)
    policy.model.cuda()
    check_fp8(policy, torch.device("cuda"))
    grads = []
    for compiled in (False, True):
        layers = TrainingLayers(compiled, fp8=True)
        monkeypatch.setattr(update, "training_layers", lambda *_, layers=layers: layers)
        policy.model.zero_grad()
        accumulate(random_groups(3, 4, 1), policy, parse({}))
        found = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
        grads.append(torch.cat(found).double())
    assert cosine_similarity(*grads, dim=0) > 0.99
