"""Linear layers in 8-bit floating point (e4m3), forward and in the gradient of their inputs.

Each row of the inputs and each output's weights are scaled by their own largest magnitude, so a
token's numbers do not depend on its neighbours. Sums are kept in fp32. The gradient of the weights
is computed in bf16: it adds up over all tokens, and errors of 8 bits with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType, scaled_mm

from groupwise.compat.torch_modules import has_own_forward, replaced_class
from groupwise.errors import ConfigError
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.policy import Policy

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
MULTIPLE = 16
"""Numbers of inputs and outputs must be multiples of it."""
FEWEST = 64
"""Smaller layers, such as routers of experts, are left in bf16."""


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, and their (rows, 1) scales: the product of both is about x."""
    scales = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (x.float() / scales).to(FP8), scales


@torch.library.custom_op("groupwise::scaled_product", mutates_args=())
def scaled_product(
    x: Tensor, weight: Tensor, a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor
) -> Tensor:
    """a @ b.T of rows in 8 bits, times their scales: about x @ weight.T, whose gradient it has.

    An operator of its own, as the compiler would stop at torch's function, and what quantizes
    would not be compiled.
    """
    by_row = ScalingType.RowWise
    return scaled_mm(a, b.t(), a_scales, by_row, b_scales.t(), by_row, output_dtype=torch.bfloat16)


@scaled_product.register_fake
def _(x: Tensor, weight: Tensor, a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor):
    return a.new_empty(len(a), len(b), dtype=torch.bfloat16)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T of (rows, inputs) and (outputs, inputs) in 8 bits, rounded to bf16."""
    with torch.no_grad():
        rows = (*quantized(x), *quantized(weight))
    return torch.ops.groupwise.scaled_product(x, weight, *rows)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, *_ = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # none if frozen


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    grad_x = product(grad, weight.t().contiguous()) if ctx.needs_input_grad[0] else None
    grad_weight = grad.t() @ x if ctx.needs_input_grad[1] else None
    return grad_x, grad_weight, None, None, None, None


scaled_product.register_autograd(_gradient, setup_context=_keep)


class Fp8Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        out = product(input.reshape(-1, self.in_features), self.weight)
        out = out if self.bias is None else out + self.bias
        return out.view(*input.shape[:-1], self.out_features)


@contextmanager
def fp8_products(model: Any) -> Iterator[None]:
    """While this is open, the linear layers of the model's decoder layers compute in 8 bits."""
    with replaced_class(_linears(model), Fp8Linear):
        yield


def _linears(model: Any) -> list[nn.Module]:
    """Those of decoder layers, without adapters' own and without small ones."""
    named = (each for layer in decoder_layers(model) or [] for each in layer.named_modules())
    return [
        module
        for name, module in named
        if type(module) is nn.Linear and "lora_" not in name and not has_own_forward(module)
        if all(size >= FEWEST and size % MULTIPLE == 0 for size in _sizes(module))
    ]


def _sizes(linear: nn.Linear) -> tuple[int, int]:
    """Not those of its weight, of which ZeRO-3 leaves nothing."""
    return linear.in_features, linear.out_features


def check_fp8(policy: Policy, device: torch.device) -> None:
    """An error that says why the policy's layers cannot be computed in 8 bits on a device."""
    if policy.model.dtype != torch.bfloat16:
        raise ConfigError("fp8 rounds from bf16: set precision=bf16")
    if not _linears(policy.model):
        raise ConfigError("fp8: this model has no linear layers that it could compute")
    x = torch.eye(FEWEST, device=device, dtype=torch.bfloat16)
    try:
        right = torch.equal(product(x, x), x)
    except Exception as error:  # whatever a library without such products raises
        reason = str(error).split("\n")[0]
        raise ConfigError(f"fp8 needs a GPU of the Hopper generation or newer: {reason}") from error
    if not right:
        raise ConfigError(f"fp8: products in 8 bits are wrong on this {device.type}")
