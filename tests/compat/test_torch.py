"""What we rely on in torch beyond its public interface."""

import inspect

import pytest
import torch
from torch import nn

from groupwise.compat.torch_attention import public_varlen_attn
from groupwise.compat.torch_compile import any_number_of_rows, mark_rows_dynamic
from groupwise.compat.torch_modules import has_own_forward, replaced_class, replaced_forwards


def arguments(op: torch._ops.OpOverload) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def test_the_flash_attention_ops_take_our_arguments() -> None:
    forward = arguments(torch.ops.aten._flash_attention_forward.default)
    assert forward[:10] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k",
        "dropout_p", "is_causal", "return_debug_mask",
    ]  # fmt: skip
    backward = arguments(torch.ops.aten._flash_attention_backward.default)
    assert backward[:14] == [
        "grad_out", "query", "key", "value", "out", "logsumexp", "cum_seq_q", "cum_seq_k",
        "max_q", "max_k", "dropout_p", "is_causal", "rng_state", "unused",
    ]  # fmt: skip
    for names in (forward, backward):
        assert {"scale", "window_size_left", "window_size_right"} <= set(names)


def test_public_varlen_attention_is_used_where_it_takes_windows_and_grouped_queries() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    needed = {"scale", "window_size", "enable_gqa", "return_aux"}
    complete = needed <= set(inspect.signature(varlen.varlen_attn).parameters)
    assert (public_varlen_attn() is varlen.varlen_attn) == complete
    if complete:
        assert varlen.AuxRequest(lse=True).lse


def test_dynamo_takes_a_hint_about_rows() -> None:
    assert callable(torch._dynamo.maybe_mark_dynamic)
    mark_rows_dynamic(torch.zeros(3, 2), torch.zeros(3))


def test_the_compiler_has_an_option_against_thresholds_of_rows() -> None:
    options = any_number_of_rows()
    assert options, "renamed or gone: see whether norms' gradients are still compiled by size"
    compiled = torch.compile(torch.sin, options=options)
    assert torch.allclose(compiled(torch.ones(3)), torch.sin(torch.ones(3)))


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_a_module_runs_the_forward_of_its_instance_or_of_its_new_class_and_is_restored() -> None:
    linear, x = nn.Linear(2, 3), torch.ones(1, 2)
    plain = linear(x)
    with replaced_class([linear], Doubled):
        assert torch.equal(linear(x), 2 * plain)
    assert type(linear) is nn.Linear
    with pytest.raises(RuntimeError), replaced_forwards({linear: lambda x: x}):
        assert linear(x) is x and has_own_forward(linear)
        raise RuntimeError
    assert torch.equal(linear(x), plain) and not has_own_forward(linear)
