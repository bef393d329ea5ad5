"""Log-probs by rows against the plain statement, in value and gradient."""

import pytest
import torch

from groupwise.policy import token_logprobs
from groupwise.policy.token_logprobs import logprobs_by_rows, plain_logprobs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [1.0, 0.7, None])
@pytest.mark.parametrize("cached", [1, 100, 10**6])
def test_values_and_gradient_are_those_of_the_plain_statement(
    dtype: torch.dtype, given: float | None, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_logprobs, "CACHED", cached)
    torch.manual_seed(0)
    logits = (torch.randn(13, 37) * 8).to(dtype)
    targets = torch.randint(0, 37, (13,))
    temperature = torch.rand(13) + 0.5 if given is None else given  # None: one for each row
    weights = torch.randn(13, dtype=torch.promote_types(dtype, torch.float32))
    found, expected = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    logprobs, entropies = logprobs_by_rows(found, targets, temperature)
    plain, plain_entropies = plain_logprobs(expected, targets, temperature, False)
    assert not entropies.requires_grad
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    if given is None:
        tolerance = max(tolerance, 1e-6)  # the temperatures themselves are float32
    assert torch.allclose(logprobs, plain, atol=tolerance, rtol=tolerance)
    assert torch.allclose(entropies, plain_entropies, atol=tolerance, rtol=tolerance)
    (logprobs * weights).sum().backward()
    (plain * weights).sum().backward()
    assert found.grad is not None and expected.grad is not None
    close = 0.01 if dtype == torch.bfloat16 else tolerance
    assert torch.allclose(found.grad, expected.grad, atol=close, rtol=close)


def test_a_sure_token_has_no_entropy_and_no_gradient_to_lose() -> None:
    logits = torch.tensor([[1000.0, 0.0, -1000.0]], requires_grad=True)
    logprobs, entropies = logprobs_by_rows(logits, torch.tensor([0]), 1.0)
    logprobs.sum().backward()
    assert logprobs.item() == 0 and entropies.item() == 0
    assert logits.grad is not None and torch.equal(logits.grad, torch.zeros(1, 3))


def test_no_rows_are_no_trouble() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    logprobs, entropies = logprobs_by_rows(logits, torch.zeros(0, dtype=torch.long), 1.0)
    logprobs.sum().backward()
    assert logprobs.shape == entropies.shape == (0,)
