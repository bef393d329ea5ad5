"""Drawing tokens on CUDA in one pass over the logits, as a Triton kernel.

`sampling.py` says what is computed; written as tensor operations it reads and writes arrays of the
logits' size several times. Here each program takes a part of a row's vocabulary and leaves its best
token and its sum of probabilities; a second kernel puts a row's parts together.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

PART = 4096
"""Tokens of the vocabulary that a program looks at."""

# The constants of noise.py, unsigned.
GOLDEN = tl.constexpr(0x9E3779B9)
MIX1 = tl.constexpr(0x85EBCA6B)
MIX2 = tl.constexpr(0xC2B2AE35)
LOG_2 = tl.constexpr(0.6931471805599453)
SCALE = tl.constexpr((1 - 2.0**-24) * 2.0**-31)


@triton.jit
def _mix(h, salt):
    h ^= h >> 16
    h = h * MIX1 + salt
    h ^= h >> 13
    h *= MIX2
    return h ^ (h >> 16)


@triton.jit
def _minus_v(key_ptr, position, token):
    """`noise.gumbel` of one row at these tokens before its logarithms: the same bits."""
    zero = position * 0
    low = tl.load(key_ptr).to(tl.uint32, bitcast=True) ^ _mix(position * GOLDEN, zero)
    low = _mix(low, zero)
    high = _mix(tl.load(key_ptr + 1).to(tl.uint32, bitcast=True) + low, zero)
    low = _mix(low ^ high, zero)
    below = ((_mix(low + GOLDEN, zero) >> 9).to(tl.int32).to(tl.float32) + 0.5) * 2.0**-23
    h = _mix(token.to(tl.uint32) * GOLDEN ^ low, high)
    h = h >> 1 | 0x80000000
    return (h.to(tl.int32, bitcast=True).to(tl.float32) + below) * SCALE


@triton.jit
def _gumbel(minus_v):
    return -tl.log(-libdevice.log1p(minus_v))


@triton.jit
def _rough_gumbel(minus_v):
    """`_gumbel` to 3e-5, by the logarithm that the hardware has; near 0 by its series."""
    v = -minus_v
    series = v * (1 + v * (0.5 + v * (0.33333333 + v * 0.25)))
    exponential = tl.where(v < 0.02, series, LOG_2 * -libdevice.fast_log2f(1 - v))
    return LOG_2 * -libdevice.fast_log2f(exponential)


@triton.jit
def _processed(logits, temperature, HAS_TEMPERATURE: tl.constexpr):
    logits = logits.to(tl.float32)
    return tl.div_rn(logits, temperature) if HAS_TEMPERATURE else logits


@triton.jit
def _sample_part(
    logits_ptr, keys_ptr, positions_ptr, best_ptr, stats_ptr,
    logits_row, vocab, temperature,
    PART: tl.constexpr, HAS_NOISE: tl.constexpr, HAS_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    """A part's best token; a number near its largest logit, and the sum of exp relative to it."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = tl.arange(0, PART)
    token = part * PART + index
    loaded = tl.load(logits_ptr + row * logits_row + token, mask=token < vocab, other=float("-inf"))
    logits = _processed(loaded, temperature, HAS_TEMPERATURE)
    if HAS_NOISE:
        # Rough noise tells which token has the largest sum, unless another one comes close to it.
        minus_v = _minus_v(keys_ptr + row * 2, tl.load(positions_ptr + row).to(tl.uint32), token)
        noisy = logits + _rough_gumbel(minus_v)
        top = tl.max(noisy, 0)
        is_near = noisy >= top - 1e-3 - 1e-6 * tl.abs(top)
        near = tl.sum(tl.where(is_near, index * (2 * PART) + 1, 0), 0)  # one sum: where, how many
        best = near // (2 * PART)
        if near % (2 * PART) != 1:
            best = tl.argmax(logits + _gumbel(minus_v), 0)
    else:
        top = tl.max(logits, 0)
        best = tl.argmax(logits, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    at = row * tl.num_programs(1) + part
    tl.store(best_ptr + at, tl.minimum(part * PART + best, vocab - 1))  # even where all are NaN
    tl.store(stats_ptr + at * 2, base)
    tl.store(stats_ptr + at * 2 + 1, tl.sum(tl.exp(logits - base), 0))


@triton.jit
def _join_parts(
    logits_ptr, keys_ptr, positions_ptr, best_ptr, stats_ptr, tokens_ptr, logprobs_ptr,
    logits_row, parts, temperature,
    PARTS: tl.constexpr, HAS_NOISE: tl.constexpr, HAS_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    inside, at = part < parts, row * parts + part
    token = tl.load(best_ptr + at, mask=inside, other=0)
    base = tl.load(stats_ptr + at * 2, mask=inside, other=float("-inf"))
    total = tl.load(stats_ptr + at * 2 + 1, mask=inside, other=0.0)
    loaded = tl.load(logits_ptr + row * logits_row + token, mask=inside, other=float("-inf"))
    logits = _processed(loaded, temperature, HAS_TEMPERATURE)
    noisy = logits
    if HAS_NOISE:
        position = tl.load(positions_ptr + row).to(tl.uint32)
        noisy += _gumbel(_minus_v(keys_ptr + row * 2, position, token))
    is_winner = part == tl.argmax(noisy, 0)
    top = tl.max(base, 0)
    log_sum = tl.log(tl.sum(total * tl.exp(base - top), 0))
    logit = tl.sum(tl.where(is_winner, logits, 0.0), 0)
    tl.store(tokens_ptr + row, tl.sum(tl.where(is_winner, token, 0), 0).to(tl.int64))
    tl.store(logprobs_ptr + row, logit - top - log_sum)


@torch.library.custom_op("groupwise::sample_tokens", mutates_args=())
def sample_on_cuda(
    logits_BV: Tensor, keys_B2: Tensor, positions_B: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """A token for each row and its log-prob, as `sample_tokens` without filters or penalty."""
    rows, vocab = logits_BV.shape
    parts = triton.cdiv(vocab, PART)
    device = logits_BV.device
    logits_BV = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
    keys_B2, positions_B = keys_B2.contiguous(), positions_B.long().contiguous()
    best = torch.empty(rows, parts, dtype=torch.int32, device=device)
    stats = torch.empty(rows, parts, 2, dtype=torch.float32, device=device)
    tokens = torch.empty(rows, dtype=torch.long, device=device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=device)
    options = {"HAS_NOISE": temperature > 0, "HAS_TEMPERATURE": temperature not in (0, 1)}
    sample_part: Any = _sample_part  # called as kernel[grid](...), which its type does not know
    sample_part[rows, parts](
        logits_BV, keys_B2, positions_B, best, stats, logits_BV.stride(0), vocab, temperature,
        PART=PART, num_warps=4, **options,
    )  # fmt: skip
    join_parts: Any = _join_parts
    join_parts[rows,](
        logits_BV, keys_B2, positions_B, best, stats, tokens, logprobs,
        logits_BV.stride(0), parts, temperature,
        PARTS=triton.next_power_of_2(parts), num_warps=1, **options,
    )  # fmt: skip
    return tokens, logprobs


@sample_on_cuda.register_fake
def _(logits_BV: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows = logits_BV.shape[0]
    return logits_BV.new_empty(rows, dtype=torch.long), logits_BV.new_empty(
        rows, dtype=torch.float32
    )
