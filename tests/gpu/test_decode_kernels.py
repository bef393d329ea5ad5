"""Our Triton kernels of a decode step, against the same in float64 or in tensor operations."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from groupwise.rollout.native.fused_projections import FusedProjections
from groupwise.rollout.native.gated_mlp import gated_mlps
from groupwise.rollout.noise import answer_key, gumbel, key_tensor
from groupwise.rollout.sampling import process_logits, sample_tokens
from groupwise.types import Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KV_LENS = [0, 1, 15, 16, 63, 64, 150, 1000, 4096]


def attention(
    q: Tensor, keys: Tensor, values: Tensor, kv_len: int, window: int, softcap: float
) -> Tensor:
    """One row's (H, D) queries over its (kv_len + 1, K, D) keys and values, in float64."""
    q, keys, values = q.double(), keys.double(), values.double()
    keys, values = (x.repeat_interleave(len(q) // x.shape[1], 1) for x in (keys, values))
    scores = torch.einsum("hd,nhd->hn", q, keys) * q.shape[-1] ** -0.5
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if window:
        scores[:, : max(kv_len - window + 1, 0)] = -torch.inf
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "page", "window", "softcap"),
    [
        (14, 2, 64, 16, 0, 0.0),
        (12, 2, 128, 64, 0, 0.0),
        (4, 4, 80, 32, 0, 0.0),
        (8, 2, 32, 128, 100, 0.0),
        (8, 1, 128, 64, 0, 5.0),
        (8, 4, 256, 64, 700, 30.0),
        (24, 1, 64, 16, 1, 0.0),
    ],
)
def test_it_stores_the_new_token_and_attends_to_a_rows_pages(
    dtype: torch.dtype,
    splits: int,
    heads: int,
    kv_heads: int,
    size: int,
    page: int,
    window: int,
    softcap: float,
) -> None:
    decode_kernel = importlib.import_module("groupwise.rollout.native.decode_kernel")
    torch.manual_seed(0)
    rows, width = len(KV_LENS), max(KV_LENS) // page + 2
    pages = rows * width

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device="cuda")

    base = random(2, pages, kv_heads, page, size)
    order = torch.randperm(pages, device="cuda").view(rows, width)
    for row, kv_len in enumerate(KV_LENS):  # what a row does not hold must not be looked at
        base[:, order[row, kv_len // page + 1 :]] = torch.nan
        base[:, order[row, kv_len // page], :, kv_len % page :] = torch.nan
    joint = random(rows, 1, heads + 2 * kv_heads, size).transpose(1, 2)
    q, k, v = joint.split([heads, kv_heads, kv_heads], dim=1)
    expected_base = base.clone()
    for row, kv_len in enumerate(KV_LENS):
        at = order[row, kv_len // page], slice(None), kv_len % page
        expected_base[0][at], expected_base[1][at] = k[row, :, 0], v[row, :, 0]
    arguments = (q, k, v, *base, order * base[0, 0].numel(), torch.tensor(KV_LENS, device="cuda"))
    options = size**-0.5, window, softcap
    outs = [decode_kernel.launch(*arguments, *options, splits, min_split=64) for _ in range(5)]

    assert torch.equal(base.isnan(), expected_base.isnan())
    assert torch.equal(base.nan_to_num(), expected_base.nan_to_num())
    assert all(torch.equal(outs[0], out) for out in outs)
    limit = 1e-5 if dtype == torch.float32 else 6e-3
    for row, kv_len in enumerate(KV_LENS):
        held = expected_base[:, order[row]].transpose(2, 3).flatten(1, 2)[:, : kv_len + 1]
        expected = attention(q[row, :, 0], held[0], held[1], kv_len, window, softcap)
        assert (outs[0][row, 0] - expected).norm() < limit * expected.norm()


def test_pages_may_lie_outside_of_the_base_tensor() -> None:
    decode_kernel = importlib.import_module("groupwise.rollout.native.decode_kernel")
    torch.manual_seed(0)
    whole = torch.randn(2, 20, 2, 16, 64, device="cuda")
    q, k, v = torch.randn(1, 8, 1, 64, device="cuda").split([4, 2, 2], dim=1)
    kv_lens = torch.tensor([40], device="cuda")
    size = whole[0, 0].numel()
    inside = torch.tensor([[8, 3, 5]], device="cuda") * size
    outside = inside - 8 * size

    def out(base: Tensor, table: Tensor) -> Tensor:
        keys, values = base
        return decode_kernel.decode_attention(q, k, v, keys, values, table, kv_lens, 0.1, 0, 0.0)

    expected = out(whole, inside)
    assert torch.equal(out(whole[:, 8:9], outside), expected)
    assert not torch.equal(out(whole, inside + size), expected)


@pytest.mark.parametrize("rows", [1, 200])
def test_an_answer_is_the_same_in_any_row(rows: int) -> None:
    decode_kernel = importlib.import_module("groupwise.rollout.native.decode_kernel")
    torch.manual_seed(0)
    keys, values = torch.randn(2, 30, 2, 64, 64, device="cuda").unbind()
    one = torch.randn(1, 8, 1, 64, device="cuda")
    table = torch.arange(20, device="cuda")[None] * keys[0].numel()
    others = torch.randn(rows, 8, 1, 64, device="cuda")
    outs = []
    for at in {0, rows // 2, rows - 1}:
        joint = others.clone()
        joint[at] = one[0]
        kv_lens = torch.full((rows,), 3, device="cuda")
        kv_lens[at] = 1200
        tables = torch.full((rows, 20), 25 * keys[0].numel(), device="cuda")
        tables[at] = table[0]
        q, k, v = joint.split([4, 2, 2], dim=1)
        out = decode_kernel.decode_attention(q, k, v, keys, values, tables, kv_lens, 0.1, 0, 0.0)
        outs.append(out[at])
    assert all(torch.equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("vocab", [100, 4096, 151_936])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_those_of_the_tensor_operations(
    vocab: int, temperature: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    rows, sampling = 64, Sampling(1, temperature)
    logits = (3 * torch.randn(rows, vocab, device="cuda")).to(dtype)
    keys = key_tensor([answer_key(0, i) for i in range(rows)], "cuda")
    positions = torch.arange(rows, device="cuda") * 1000
    nothing = torch.zeros(rows, 0, dtype=torch.long, device="cuda")
    tokens, logprobs = sample_tokens(logits, keys, positions, sampling, nothing)
    processed = process_logits(logits, sampling, nothing)
    noise = gumbel(keys, positions, vocab) if temperature else 0
    noisy = processed + noise
    gap = noisy.amax(-1) - noisy.gather(-1, tokens[:, None])[:, 0]
    assert (gap < 1e-5).all()  # equal but for ties: logarithms may differ in the last bit
    expected = processed.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 17, 64, 100])
def test_a_gated_product(dtype: torch.dtype, rows: int) -> None:
    importlib.import_module("groupwise.rollout.native.linear_kernel")
    torch.manual_seed(0)
    x = torch.randn(rows, 1, 256, device="cuda", dtype=dtype)
    weight = torch.randn(2 * 384, 256, device="cuda", dtype=dtype) * 0.1
    gate, up = F.linear(x.double(), weight.double()).chunk(2, -1)
    expected = F.silu(gate) * up
    product = torch.ops.groupwise.gated_product(x, weight)
    assert product.shape == expected.shape and product.dtype == dtype
    assert (product.double() - expected).norm() < 6e-3 * expected.norm()


def test_gated_mlps_are_computed_by_the_kernel_and_others_are_left_alone() -> None:
    config = AutoConfig.for_model(
        "qwen2", hidden_size=128, intermediate_size=384, num_hidden_layers=2, vocab_size=64
    )
    layers = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").model.layers
    layers[1].mlp.act_fn = torch.nn.GELU()
    fused = FusedProjections(layers)
    assert [parent for parent, _, _ in gated_mlps(layers, fused.replacements)] == [layers[0]]
    fused.replacements += gated_mlps(layers, fused.replacements)
    for rows in (3, 100):
        x = torch.randn(rows, 1, 128, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            expected = [layer.mlp(x).float() for layer in layers]
            with fused.in_use():
                outputs = [layer.mlp(x).float() for layer in layers]
        for ours, theirs in zip(outputs, expected, strict=True):
            assert (ours - theirs).norm() < 2e-2 * theirs.norm()
