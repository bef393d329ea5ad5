import math

import torch

from groupwise.rollout.noise import answer_key, gumbel, key_tensor


def noise(key: int, position: int, vocab: int = 1000) -> torch.Tensor:
    return gumbel(key_tensor([key], "cpu"), torch.tensor([position]), vocab)[0]


def test_noise_is_standard_gumbel() -> None:
    keys = key_tensor([answer_key(0, i) for i in range(200)], "cpu")
    values = gumbel(keys, torch.zeros(200), 5000).double().flatten()
    assert values.isfinite().all()
    assert abs(values.mean() - 0.5772) < 0.005  # Euler's constant
    assert abs(values.var() - math.pi**2 / 6) < 0.01
    uniform = (-(-values).exp()).exp()
    counts = torch.histc(uniform, bins=100, min=0, max=1)
    chi2 = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi2 < 160  # 99 degrees of freedom: one in ten thousand


def test_large_noise_is_as_frequent_as_it_should_be() -> None:
    keys = key_tensor([answer_key(3, i) for i in range(200)], "cpu")
    values = torch.cat([gumbel(part, torch.zeros(len(part)), 200_000) for part in keys.split(50)])
    for threshold in (8, 10, 12, 14, 16):
        expected = values.numel() * -math.expm1(-math.exp(-threshold))
        count = int((values > threshold).sum())
        assert abs(count - expected) < 4 * math.sqrt(expected), threshold


def test_the_largest_noise_has_the_tail_of_a_gumbel() -> None:
    """Token 0 has the greatest of 2**31 hashes in all of these rows: its noise exceeds
    31 log 2 + t with probability exp(-t), so tokens 20 to 30 logits below the top are drawn."""
    rows = 20_000
    keys = [key_with_greatest_hash(answer_key(7, i) & 0xFFFFFFFF) for i in range(rows)]
    beyond = gumbel(key_tensor(keys, "cpu"), torch.zeros(rows), 1).flatten() - 31 * math.log(2)
    for t in (0.25, 1, 2, 4, 6, 8):
        expected = rows * math.exp(-t)
        assert abs(int((beyond > t).sum()) - expected) < 4 * math.sqrt(expected), t


def key_with_greatest_hash(low: int) -> int:
    """The hash taken backwards: a key whose token 0 at position 0 hashes to all ones."""
    mix1, mask = 0x85EBCA6B, 0xFFFFFFFF
    salted = unmix(0xFFFFFFFF, steps=1)
    high = (salted - (low ^ low >> 16) * mix1) & mask
    first = unmix(low) ^ high
    return unmix(first) | ((unmix(high) - first) & mask) << 32


def unmix(h: int, steps: int = 2) -> int:
    """`noise._mix` backwards, wholly or down to where the salt was added."""
    h ^= h >> 16
    h = h * pow(0xC2B2AE35, -1, 2**32) & 0xFFFFFFFF
    h ^= h >> 13 ^ h >> 26
    if steps == 1:
        return h
    h = h * pow(0x85EBCA6B, -1, 2**32) & 0xFFFFFFFF
    return h ^ h >> 16


def test_neighbours_in_key_position_and_vocabulary_are_independent() -> None:
    base = noise(answer_key(1, 2, "p", 3), 7, 200_000).double()
    others = {
        "position": noise(answer_key(1, 2, "p", 3), 8, 200_000),
        "answer": noise(answer_key(1, 2, "p", 4), 7, 200_000),
        "key + 1": noise(answer_key(1, 2, "p", 3) + 1, 7, 200_000),
        "high half": noise(answer_key(1, 2, "p", 3) ^ (1 << 40), 7, 200_000),
        "vocabulary": torch.roll(base, 1).float(),
    }
    for name, other in others.items():
        correlation = torch.corrcoef(torch.stack([base, other.double()]))[0, 1]
        assert abs(correlation) < 0.01, name


def test_noise_does_not_depend_on_batch_neighbours() -> None:
    keys = [answer_key(5, i) for i in range(6)]
    together = gumbel(key_tensor(keys, "cpu"), torch.arange(6), 50)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], noise(key, row, 50))


def test_keys_differ_by_every_part() -> None:
    parts = [(0, 1, "a", 0), (1, 1, "a", 0), (0, 2, "a", 0), (0, 1, "b", 0), (0, 1, "a", 1)]
    assert len({answer_key(*part) for part in parts}) == len(parts)
    assert answer_key(0, 1, "a", 0) == answer_key(0, 1, "a", 0)
    assert answer_key(0, "a", 11) != answer_key(0, "a1", 1)
