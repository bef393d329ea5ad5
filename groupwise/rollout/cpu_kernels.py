"""Our kernels for decode steps on a CPU (cpu_kernels.c), compiled once for the machine they run on.

A decode step of a small model is hundreds of small tensor operations, each of which costs more to
call than to compute. These few do the same work in one pass each. They want a C compiler; where
there is none, sampling does without them (page_attention.py, sampling.py).
"""

import ctypes
import logging
from functools import cache

import torch
from torch import Tensor

from groupwise.rollout.c_library import NoLibraryError, load_library

log = logging.getLogger("groupwise")

MAX_GROUP, MAX_HEAD_SIZE, MAX_PAGE = 128, 256, 256
"""As in cpu_kernels.c: query heads to a key head, elements of a head, tokens of a page."""
_DRAW_BYTES = 32

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


_ARGUMENTS = {
    "draw_tokens": [_POINTER, *[_INT] * 4, *[_POINTER] * 2, _FLOAT, *[_POINTER] * 3, _INT],
    "add_norm": [*[_POINTER] * 3, _FLOAT, _POINTER, *[_INT] * 3],
    "gated": [*[_POINTER] * 2, *[_INT] * 2],
    "decode_attention": [
        *[*[_POINTER] * 8, _INT, *[_POINTER] * 3],
        *[*[_INT] * 6, *[_FLOAT] * 2, _INT],
    ],
}


@cache
def compiled_kernels() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had."""
    try:
        library = load_library("cpu_kernels.c")
    except NoLibraryError as error:
        log.info("sampling without kernels of our own: %s", error)
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def _kernels() -> ctypes.CDLL:
    library = compiled_kernels()
    assert library is not None
    return library


def draw_tokens(
    logits_BV: Tensor, keys_B2: Tensor, positions_B: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """As `sampling.sample_tokens` without filters. Logits may lie rows first or tokens first."""
    (rows, vocab), threads = logits_BV.shape, torch.get_num_threads()
    keys, positions = keys_B2.contiguous(), positions_B.contiguous()
    tokens, logprobs = torch.empty(rows, dtype=torch.long), torch.empty(rows)
    parts = torch.empty(threads * rows * _DRAW_BYTES, dtype=torch.uint8)
    _kernels().draw_tokens(
        *(logits_BV.data_ptr(), *logits_BV.stride(), rows, vocab),
        *(keys.data_ptr(), positions.data_ptr(), temperature),
        *(tokens.data_ptr(), logprobs.data_ptr(), parts.data_ptr(), threads),
    )
    return tokens, logprobs


def add_norm(hidden_FR: Tensor, delta_FR: Tensor | None, weight_F: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden`, in place; the sum, normalised by its root mean square."""
    normed_FR = torch.empty_like(hidden_FR)
    delta = None if delta_FR is None else delta_FR.data_ptr()
    _kernels().add_norm(
        *(hidden_FR.data_ptr(), delta, weight_F.data_ptr(), eps, normed_FR.data_ptr()),
        *(*hidden_FR.shape, torch.get_num_threads()),
    )
    return normed_FR


def gated(gate_up_FR: Tensor) -> Tensor:
    """silu(gate) * up, in the place of the gate."""
    gate, up = gate_up_FR.chunk(2)
    _kernels().gated(gate.data_ptr(), up.data_ptr(), gate.numel(), torch.get_num_threads())
    return gate


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    pages_nw: Tensor,
    kv_lens_n: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Store each row's new key and value (n, K, 1, D), and attend from q (n, H, 1, D) to its pages.

    `keys` and `values` are a layer's pages, `pages_nw` their distances in elements. With `rotary`,
    cosines and sines (n, D), queries and keys have no positions yet. Gives (n, 1, H, D), which lies
    as the queries do: rows first or features first.
    """
    rows, heads, _, size = q.shape
    kv_heads, page = keys.shape[1:3]
    if q.stride(-1) == 1:
        out = q.new_empty(rows, heads, size)
    else:
        out = q.new_empty(heads, size, rows).permute(2, 0, 1)
    cos, sin = (x.contiguous() for x in rotary) if rotary else (None, None)
    strides = [s for x in (q[:, :, 0], k[:, :, 0], v[:, :, 0], out) for s in x.stride()]
    _kernels().decode_attention(
        *(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), (_INT * 12)(*strides)),
        *(keys.data_ptr(), values.data_ptr(), pages_nw.data_ptr(), pages_nw.shape[1]),
        *(kv_lens_n.data_ptr(), *(x if x is None else x.data_ptr() for x in (cos, sin))),
        *(rows, kv_heads, heads // kv_heads, size, page, window, scale, softcap),
        torch.get_num_threads(),
    )
    return out[:, None]
