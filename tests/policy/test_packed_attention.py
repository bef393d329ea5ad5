"""Packed sequences on a CPU: computed together with padding, equal to each of them alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.policy import padded_attention
from groupwise.policy.attention import AttentionOptions
from groupwise.policy.packed_attention import PackedAttention, PackedSequences, group_sequences
from groupwise.policy.padded_attention import PaddedSequences
from same_gradients import assert_same_with_gradients

CPU = torch.device("cpu")
GROUPS = [[3, 2, 0, 4], [1, 5], [6], [9, 1, 1, 30]]


def alone(
    q: Tensor, k: Tensor, v: Tensor, seqlens_q: list[int], kv_index: list[np.ndarray],
    options: AttentionOptions,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries, (M, K, D) keys and values to (N, H, D): written out, one by one."""
    outputs: list[Tensor] = []
    for queries, index in zip(q.split(seqlens_q), kv_index, strict=True):
        keys, values = (x[index].repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * options.scale
        if options.softcap is not None:
            scores = torch.tanh(scores / options.softcap) * options.softcap
        behind = len(keys) - len(queries)
        distance = behind + torch.arange(len(queries))[:, None] - torch.arange(len(keys))
        visible = (distance >= 0) & (distance < (options.sliding_window or len(keys)))
        p = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", p, values))
    return torch.cat(outputs)


def drawn(tokens: int, heads: int, kv_heads: int) -> list[Tensor]:
    shapes = [(tokens, heads, 8), (tokens, kv_heads, 8), (tokens, kv_heads, 8)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 3])
def test_each_answer_attends_to_its_prompt_and_itself(
    window: int | None, softcap: float | None, kv_heads: int
) -> None:
    torch.manual_seed(0)
    q, k, v = drawn(sum(map(sum, GROUPS)), 4, kv_heads)
    options = AttentionOptions(0.5, window, softcap)
    q_row, k_row, v_row = (x.transpose(0, 1)[None] for x in (q, k, v))
    packed = PackedAttention(GROUPS, CPU)(None, q_row, k_row, v_row, options)[0]
    expected = alone(q, k, v, *group_sequences(GROUPS), options)
    assert_same_with_gradients(packed, expected, (q, k, v), 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=30),
    window=st.none() | st.integers(1, 20),
    limit=st.sampled_from([64, 4000, 2**22]),
)
def test_sequences_with_keys_of_their_own(
    lengths: list[tuple[int, int]], window: int | None, limit: int
) -> None:
    """As in a prefill: what is held first, then the new tokens; whatever is computed together."""
    rng = np.random.default_rng(0)
    seqlens_q = [queries for queries, _ in lengths]
    tokens = sum(seqlens_q) + 100
    kv_index = [rng.integers(0, tokens, queries + held) for queries, held in lengths]
    q, k, v = drawn(tokens, 2, 1)
    q = q[: sum(seqlens_q)]
    options = AttentionOptions(0.3, window, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padded_attention, "MAX_SCORES", limit)
        sequences = PackedSequences(seqlens_q, kv_index, CPU)
        packed = sequences.attention(q, k, v, options)[0]
    assert torch.allclose(packed, alone(q, k, v, seqlens_q, kv_index, options), atol=1e-12)


def test_similar_lengths_are_computed_together_and_long_ones_alone() -> None:
    def calls(groups: list[list[int]]) -> list[list[int]]:
        return [list(call.members) for call in PaddedSequences(*group_sequences(groups), CPU).calls]

    assert calls([[24, *[10, 14] * 4]]) == [[1, 3, 5, 7, 2, 4, 6, 8], [0]]
    assert calls([[100, 3000, 3000, 20, 22]]) == [[3, 4], [1], [2], [0]]
    assert calls([[4000], [4000], [10], [12]]) == [[2, 3], [0], [1]]
