"""Keyed randomness: a draw follows from (seed, step, problem, answer, position), nothing else.

A sequential generator would make an answer depend on what was sampled before it and beside it. Here
noise is a hash of a key, so the same seed gives the same answer alone or in a batch, in any order,
on any engine, and a resumed run needs no generator state. Sampling is Gumbel-max: the argmax of
logits plus Gumbel noise is a draw from softmax(logits).

The noise has 54 bits where it is large, which is where improbable tokens are drawn: one that is 30
logits below the top comes up as often as it should. 31 bits are a token's own. The 23 below them
belong to the row and cost nothing by token; they count only where a token's own are all zero.
"""

import hashlib

import torch
from torch import Tensor

# Odd constants with well-mixed bits (the finalizer of MurmurHash3 and the golden ratio), as int32.
_GOLDEN, _MIX1, _MIX2 = (c - (c >> 31 << 32) for c in (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35))
# A hair under 2**-31: rounding to float32 must not make a v of 1, whose noise is infinite.
_SCALE = (1 - 2.0**-24) * 2.0**-31


def answer_key(seed: int, *parts: int | str) -> int:
    """64 bits that name one answer: answer_key(seed, step, problem_id, answer_index)."""
    text = "\x1f".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key_tensor(keys: tuple[int, ...] | list[int], device: torch.device | str) -> Tensor:
    """Keys as (B, 2) int32 halves, the form that `gumbel` takes."""
    halves = [(key & 0xFFFFFFFF, key >> 32) for key in keys]
    signed = [[half - (half >> 31 << 32) for half in pair] for pair in halves]
    return torch.tensor(signed, dtype=torch.int32, device=device).reshape(-1, 2)


def gumbel(keys_B2: Tensor, positions_B: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise (B, V) float32 for the token at each row's position."""
    # Mix key and position per row, where it costs nothing: every bit of either reaches both halves.
    low = _mix(keys_B2[:, 0] ^ _mix(positions_B.to(torch.int32) * _GOLDEN))
    high = _mix(keys_B2[:, 1] + low)
    low = _mix(low ^ high)
    h = torch.arange(vocab, dtype=torch.int32, device=keys_B2.device) * _GOLDEN ^ low[:, None]
    h = _mix(h, high[:, None])
    # The noise is -log(-log(1 - v)) for a uniform v, which float32 holds finely only near 0. Here
    # it is negative: the integer is from -2**31 to -1, and `below` between 0 and 1, both exclusive.
    # `h` is uniform for a given `low`, so what follows from `low` alone is independent of it.
    below = ((_mix(low + _GOLDEN) >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    h >>= 1
    h |= -(2**31)
    minus_v = h.to(torch.float32).add_(below[:, None]).mul_(_SCALE)
    return minus_v.log1p_().neg_().log_().neg_()


def _mix(h: Tensor, salt: Tensor | int = 0) -> Tensor:
    """An avalanche of 32 bits: every input bit reaches every output bit. Shifts are logical."""
    h = h ^ (h >> 16).bitwise_and_(0xFFFF)
    h = h.mul_(_MIX1).add_(salt)
    h ^= (h >> 13).bitwise_and_(0x7FFFF)
    h *= _MIX2
    h ^= (h >> 16).bitwise_and_(0xFFFF)
    return h
