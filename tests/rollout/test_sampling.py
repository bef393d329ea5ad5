import pytest
import torch

from groupwise.rollout.noise import answer_key, key_tensor
from groupwise.rollout.sampling import keeps_all_tokens, process_logits, sample_tokens
from groupwise.types import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
NONE = torch.zeros(1, 0, dtype=torch.long)


def frequencies(sampling: Sampling, count: int = 40_000) -> tuple[torch.Tensor, torch.Tensor]:
    keys = key_tensor([answer_key(3, i) for i in range(count)], "cpu")
    logits = LOGITS.expand(count, -1)
    seen = torch.zeros(count, 0, dtype=torch.long)
    tokens, logprobs = sample_tokens(logits, keys, torch.zeros(count), sampling, seen)
    return torch.bincount(tokens, minlength=6) / count, logprobs.exp()[tokens.argsort()]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1), LOGITS.softmax(-1)),
        (Sampling(1, temperature=0.5), (2 * LOGITS).softmax(-1)),
        (Sampling(1, temperature=2.0), (LOGITS / 2).softmax(-1)),
        (Sampling(1, top_k=2), torch.cat([LOGITS[:2].softmax(-1), torch.zeros(4)])),
        # 0.55 + 0.20 reach 0.7, so two tokens stay
        (Sampling(1, top_p=0.7), torch.cat([LOGITS[:2].softmax(-1), torch.zeros(4)])),
        # e^-1 and e^-1.5 are above 0.2, e^-2 is not
        (Sampling(1, min_p=0.2), torch.cat([LOGITS[:3].softmax(-1), torch.zeros(3)])),
    ],
)
def test_sampled_frequencies_match_the_distribution(
    sampling: Sampling, expected: torch.Tensor
) -> None:
    seen, _ = frequencies(sampling)
    possible = expected > 0
    chi2 = (40_000 * (seen - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi2 < 30  # at most 5 degrees of freedom: one in a hundred thousand
    assert seen[~possible].sum() == 0


def test_logprobs_are_of_the_distribution_that_was_drawn_from() -> None:
    sampling = Sampling(1, temperature=0.7, top_k=3)
    keys = key_tensor([answer_key(0, i) for i in range(50)], "cpu")
    seen = torch.zeros(50, 0, dtype=torch.long)
    tokens, logprobs = sample_tokens(LOGITS.expand(50, -1), keys, torch.zeros(50), sampling, seen)
    expected = process_logits(LOGITS[None], sampling, NONE).log_softmax(-1)[0]
    assert torch.allclose(logprobs, expected[tokens])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1), True),
        (Sampling(1, temperature=0.7), True),
        (Sampling(1, top_k=5), False),
        (Sampling(1, top_p=0.9), False),
        (Sampling(1, min_p=0.1), False),
        (Sampling(1, repetition_penalty=1.1), False),
    ],
)
def test_only_what_keeps_all_tokens_may_be_drawn_in_one_pass(
    sampling: Sampling, expected: bool
) -> None:
    logits = LOGITS[None] / (sampling.temperature or 1)
    seen = torch.tensor([[0]])
    assert keeps_all_tokens(sampling) == expected
    assert torch.equal(process_logits(LOGITS[None], sampling, seen), logits) == expected


def test_temperature_zero_takes_the_likeliest() -> None:
    tokens, logprobs = sample_tokens(
        LOGITS[None], key_tensor([1], "cpu"), torch.zeros(1), Sampling(1, temperature=0.0), NONE
    )
    assert tokens.tolist() == [0]
    assert logprobs.item() == pytest.approx(LOGITS.log_softmax(-1)[0].item())


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    scores = process_logits(
        LOGITS[None], Sampling(1, repetition_penalty=2.0), torch.tensor([[0, 4]])
    )
    assert scores[0].tolist() == [1.0, 1.0, 0.5, 0.0, -2.0, -3.0]


def test_bf16_logits_are_sampled_in_float32() -> None:
    scores = process_logits(LOGITS[None].bfloat16(), Sampling(1), NONE)
    assert scores.dtype == torch.float32
