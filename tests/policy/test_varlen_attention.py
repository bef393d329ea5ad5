"""The varlen call over packed groups, with FlashAttention replaced by plain attention on a CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.policy import varlen_attention
from groupwise.policy.attention import AttentionOptions
from groupwise.policy.packed_attention import PackedAttention, group_sequences
from groupwise.policy.varlen_attention import VarlenSequences
from same_gradients import assert_same_with_gradients

GROUPS = [[3, 2, 0, 4], [1, 5], [6]]


def sequences(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int],
    scale: float, window: int,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:  # fmt: skip
    """Queries, keys, values and softmax of each sequence: causal, and both end together."""
    assert longest == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    for i in range(len(cu_q) - 1):
        queries = q[cu_q[i] : cu_q[i + 1]]
        keys, values = (x[cu_k[i] : cu_k[i + 1]].repeat_interleave(2, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        behind = len(keys) - len(queries)
        distance = behind + torch.arange(len(queries))[:, None] - torch.arange(len(keys))
        visible = (distance >= 0) & (distance < (window or len(keys)))
        yield queries, keys, values, scores.masked_fill(~visible, -torch.inf).softmax(-1)


def plain_forward(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    outputs = [torch.einsum("hqk,khd->qhd", p, v) for _, _, v, p in sequences(q, *rest)]
    return torch.cat(outputs), torch.zeros(q.shape[1], len(q))


def plain_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """Written out: autograd is off inside a custom operator."""
    grads: list[tuple[Tensor, Tensor, Tensor]] = []
    start, scale = 0, rest[3]
    for queries, keys, values, p in sequences(q, k, v, *rest):
        d_out = grad[start : (start := start + len(queries))]
        d_p = torch.einsum("qhd,khd->hqk", d_out, values)
        d_scores = p * (d_p - (d_p * p).sum(-1, keepdim=True)) * scale
        d_k, d_v = (
            torch.einsum("hqk,qhd->khd", weights, x).unflatten(1, (-1, 2)).sum(2)
            for weights, x in ((d_scores, queries), (p, d_out))
        )
        grads.append((torch.einsum("hqk,khd->qhd", d_scores, keys), d_k, d_v))
    return tuple(torch.cat(parts) for parts in zip(*grads, strict=True))


@pytest.mark.parametrize("window", [None, 3])
def test_one_varlen_call_is_the_attention_of_each_answer_to_its_prompt_and_itself(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen_attention, "varlen_forward", plain_forward)
    monkeypatch.setattr(varlen_attention, "varlen_backward", plain_backward)
    torch.manual_seed(0)
    tokens = sum(map(sum, GROUPS))
    options = AttentionOptions(0.5, window, None)
    shapes = [(1, 4, tokens, 8), (1, 2, tokens, 8), (1, 2, tokens, 8)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    expected = PackedAttention(GROUPS, torch.device("cpu"))(None, q, k, v, options)
    flat_q, flat_k, flat_v = (x[0].transpose(0, 1) for x in (q, k, v))
    sequences = VarlenSequences(*group_sequences(GROUPS), torch.device("cpu"))
    packed = sequences.attention(flat_q, flat_k, flat_v, options)
    assert_same_with_gradients(packed, expected, (q, k, v), 1e-5)
