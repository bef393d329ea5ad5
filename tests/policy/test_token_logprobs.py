"""Chunked log-probs and entropies equal the dense ones, and really are chunked."""

from collections.abc import Callable

import pytest
import torch

from groupwise.policy.limits import chunk_logits, kept_logits
from groupwise.policy.token_logprobs import token_logprobs

K, H, V = 37, 8, 53


def inputs(dtype: torch.dtype = torch.float32):
    g = torch.Generator().manual_seed(0)
    hidden_KH = torch.randn(K, H, generator=g, dtype=torch.float64)
    weight_VH = torch.randn(V, H, generator=g, dtype=torch.float64)
    targets_K = torch.randint(V, (K,), generator=g)
    return hidden_KH.to(dtype).requires_grad_(), weight_VH.to(dtype).requires_grad_(), targets_K


def dense(hidden_KH, weight_VH, targets_K, temperature):
    logits_KV = (hidden_KH @ weight_VH.T).to(torch.promote_types(hidden_KH.dtype, torch.float32))
    distribution = torch.distributions.Categorical(logits=logits_KV / temperature)
    return distribution.log_prob(targets_K), distribution.entropy()


@pytest.mark.parametrize("rows", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_values_and_gradients_equal_dense_ones(rows, temperature):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        hidden, weight, targets = inputs(dtype)
        logprobs, entropies = token_logprobs(
            hidden,
            lambda h, weight=weight: h @ weight.T,
            targets,
            temperature,
            vocab=V,
            entropy_grad=True,
            chunk_logits=rows * V + 1,
        )
        want_logprobs, want_entropies = dense(hidden, weight, targets, temperature)
        torch.testing.assert_close(logprobs, want_logprobs, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(entropies, want_entropies, rtol=tolerance, atol=tolerance)
        pull = torch.linspace(-1, 1, K, dtype=dtype)
        got = torch.autograd.grad((pull * (logprobs + 0.3 * entropies)).mean(), (hidden, weight))
        expected = (pull * (want_logprobs + 0.3 * want_entropies)).mean()
        want = torch.autograd.grad(expected, (hidden, weight))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_half_precision_logits_are_raised_to_float32_before_the_softmax():
    hidden, weight, targets = inputs(torch.bfloat16)
    logprobs, entropies = token_logprobs(
        hidden, lambda h: h @ weight.T, targets, 0.9, vocab=V, chunk_logits=5 * V
    )
    assert logprobs.dtype == entropies.dtype == torch.float32
    logits = (hidden.detach() @ weight.detach().T).double() / 0.9
    want = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(logprobs.double(), want.log_prob(targets), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropies.double(), want.entropy(), rtol=1e-6, atol=1e-6)
    logprobs.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("chunk_logits", [5 * V, 1000 * V])
def test_entropy_as_a_metric_is_detached(chunk_logits):
    hidden, weight, targets = inputs()

    def call():
        size = {"vocab": V, "chunk_logits": chunk_logits}
        return token_logprobs(hidden, lambda h: h @ weight.T, targets, 1.0, **size)

    logprobs, entropies = call()
    assert not entropies.requires_grad and logprobs.requires_grad
    with torch.no_grad():
        values, again = call()
    assert torch.equal(values, logprobs) and torch.equal(again, entropies)


def counting_head(weight: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[int]]:
    """A head, and how many rows each of its calls had."""
    seen: list[int] = []

    def head(h: torch.Tensor) -> torch.Tensor:
        seen.append(len(h))
        return h @ weight.T

    return head, seen


def test_head_never_sees_more_rows_than_the_budget_and_recomputes_only_when_chunked():
    hidden, weight, targets = inputs()
    head, seen = counting_head(weight)

    logprobs, _ = token_logprobs(hidden, head, targets, 1.0, vocab=V, chunk_logits=10 * V + V // 2)
    assert seen == [10, 10, 10, 7]
    logprobs.sum().backward()
    assert sorted(seen) == [7, 7, 10, 10, 10, 10, 10, 10]

    seen.clear()
    logprobs, _ = token_logprobs(hidden, head, targets, 1.0, vocab=V, chunk_logits=K * V)
    logprobs.sum().backward()
    assert seen == [K]


def test_logits_that_are_kept_are_not_computed_again_and_give_the_same_gradient():
    hidden, weight, targets = inputs()
    head, seen = counting_head(weight)

    def gradient(kept: int) -> torch.Tensor:
        seen.clear()
        logprobs, _ = token_logprobs(
            hidden, head, targets, 1.0, vocab=V, chunk_logits=10 * V, kept_logits=kept * V
        )
        (found,) = torch.autograd.grad((logprobs * torch.arange(K)).sum(), hidden)
        return found

    again = gradient(0)
    assert len(seen) == 8
    assert torch.equal(gradient(29), again) and len(seen) == 6  # two chunks and no part of one
    assert torch.equal(gradient(1000), again) and len(seen) == 4


def test_only_a_large_memory_keeps_logits_and_only_of_a_head_that_trains():
    gib = 2**30
    assert chunk_logits(None) == chunk_logits(24 * gib) < chunk_logits(80 * gib)
    assert kept_logits(80 * gib, 2, True) * 2 == pytest.approx(2.5 * gib)
    for memory, trains in ((80 * gib, False), (24 * gib, True), (None, True)):
        assert kept_logits(memory, 2, trains) == 0


def test_backward_keeps_no_logits_of_other_chunks():
    hidden, weight, targets = inputs()
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_logprobs(hidden, lambda h: h @ weight.T, targets, 1.0, vocab=V, chunk_logits=5 * V)
    assert max(saved, default=0) <= max(K, 5 * H, V * H)
    assert sum(saved) < K * V


def test_a_module_with_bias_serves_as_head():
    head = torch.nn.Linear(H, V)
    hidden, _, targets = inputs()
    logprobs, _ = token_logprobs(hidden, head, targets, 1.0, vocab=V, chunk_logits=4 * V)
    want = head(hidden).log_softmax(-1)[torch.arange(K), targets]
    torch.testing.assert_close(logprobs, want, rtol=1e-6, atol=1e-6)
    logprobs.sum().backward()
    assert head.bias.grad is not None and head.bias.grad.abs().sum() > 0


def test_no_tokens_give_empty_results_that_backpropagate():
    hidden = torch.zeros(0, H, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.long)
    logprobs, entropies = token_logprobs(hidden, torch.nn.Linear(H, V), targets, 1.0, vocab=V)
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    assert hidden.grad is not None
