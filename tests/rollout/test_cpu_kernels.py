"""Our C kernels against torch in float64, and what happens where they cannot be compiled."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engines import generate
from groupwise.rollout import c_library, cpu_kernels, sampling
from groupwise.rollout.native.cpu_attention import CpuAttention
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers
from groupwise.rollout.native.page_attention import PageAttention
from groupwise.rollout.noise import answer_key, key_tensor
from groupwise.types import Completion, Request, Sampling
from small_models import FAMILIES, random_policy

needs_kernels = pytest.mark.skipif(
    cpu_kernels.compiled_kernels() is None, reason="no C compiler here"
)
PROMPTS = [(5, 6, 7), (9,), tuple(range(11, 25)), (4, 4, 4, 4, 4, 4, 4, 8)]


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sampling", "native.cpu_attention", "native.fused_layers"):
        monkeypatch.setattr(f"groupwise.rollout.{module}.compiled_kernels", lambda: None)


def test_sizes_are_the_same_in_c_and_in_python() -> None:
    source = Path(cpu_kernels.__file__).with_suffix(".c").read_text()
    for name in ("MAX_GROUP", "MAX_HEAD_SIZE", "MAX_PAGE"):
        assert f"#define {name} {getattr(cpu_kernels, name)}\n" in source


@needs_kernels
@pytest.mark.parametrize("rows", [1, 5, 16, 33])
@pytest.mark.parametrize("features", [1, 24, 577])
def test_norms_and_gates(rows: int, features: int) -> None:
    torch.manual_seed(rows)
    hidden, delta = torch.randn(2, features, rows)
    weight, up = torch.rand(features) + 0.5, torch.randn(features, rows)
    expected = hidden.double() + delta.double()
    normed = cpu_kernels.add_norm(hidden, delta, weight, 1e-5)
    assert torch.allclose(hidden.double(), expected, atol=1e-6)
    expected = expected / (expected.pow(2).mean(0) + 1e-5).sqrt() * weight.double()[:, None]
    assert torch.allclose(normed.double(), expected, atol=1e-5)
    without = cpu_kernels.add_norm(hidden, None, weight, 1e-5)
    assert torch.equal(without, normed)
    gate = 20 * torch.randn(features, rows)
    gated = cpu_kernels.gated(torch.cat([gate, up]))
    expected = torch.nn.functional.silu(gate.double()) * up.double()
    assert torch.allclose(gated.double(), expected, rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("features_first", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 2, 64), (3, 3, 10), (4, 1, 128)])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (0, 3.0)])
@pytest.mark.parametrize("rotates", [True, False])
def test_attention_over_pages(
    heads: int,
    kv_heads: int,
    size: int,
    window: int,
    softcap: float,
    rotates: bool,
    features_first: bool,
) -> None:
    torch.manual_seed(heads)
    page, lens = 8, torch.tensor([0, 3, 7, 8, 21])
    rows = len(lens)
    keys, values = torch.randn(2, 20, kv_heads, page, size)
    table = torch.randperm(20)[: 3 * rows].view(rows, 3)
    offsets = table * kv_heads * page * size
    qkv = torch.randn(rows, heads + 2 * kv_heads, 1, size)
    if features_first:
        qkv = qkv.flatten(1).t().contiguous().t().view(qkv.shape)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    angles = torch.rand(rows, size // 2).repeat(1, 2)
    rotary = (angles.cos(), angles.sin()) if rotates else None
    expected = attended(q, k, v, keys, values, table, lens, window, softcap, rotary)
    out = cpu_kernels.decode_attention(
        *(q, k, v, keys, values, offsets, lens),
        scale=0.3,
        window=window,
        softcap=softcap,
        rotary=rotary,
    )
    assert out.shape == (rows, 1, heads, size)
    assert torch.allclose(out[:, 0].double(), expected, atol=1e-5)
    # New keys and values are in their pages.
    stored = values[table[4, 21 // page], :, 21 % page]
    assert torch.equal(stored, v[4, :, 0])


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lens: Tensor,
    window: int,
    softcap: float,
    rotary: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The same in float64, row by row."""

    def rotated(x: Tensor, row: int) -> Tensor:
        if rotary is None:
            return x.double()
        first, second = x.double().chunk(2, -1)
        cos, sin = (part[row].double() for part in rotary)
        return x.double() * cos + torch.cat([-second, first], -1) * sin

    rows = []
    for row, length in enumerate(lens.tolist()):
        own = [part[table[row]].transpose(0, 1).flatten(1, 2).double() for part in (keys, values)]
        all_k = torch.cat([own[0][:, :length], rotated(k[row], row)], 1)
        all_v = torch.cat([own[1][:, :length], v[row].double()], 1)
        each = q.shape[1] // k.shape[1]
        all_k, all_v = (x.repeat_interleave(each, 0) for x in (all_k, all_v))
        scores = 0.3 * rotated(q[row], row) @ all_k.mT
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if window:
            scores[..., : max(length + 1 - window, 0)] = -torch.inf
        rows.append((scores.softmax(-1) @ all_v)[:, 0])
    return torch.stack(rows)


@needs_kernels
@pytest.mark.parametrize("vocab", [7, 128, 1000, 49_152])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.0])
def test_tokens_are_those_that_torch_draws(
    vocab: int, temperature: float, no_kernels: None
) -> None:
    torch.manual_seed(vocab)
    rows = 9
    keys = key_tensor([answer_key(3, n) for n in range(rows)], "cpu")
    settings, seen = Sampling(8, temperature), torch.zeros(rows, 0, dtype=torch.long)
    for step in range(8):
        logits = (3 * torch.randn(vocab, rows)).t()
        logits[0, 0] = -torch.inf
        positions = torch.arange(rows) + 100 * step
        expected = sampling.sample_tokens(logits.contiguous(), keys, positions, settings, seen)
        scaled = logits.double() / (temperature or 1.0)
        for layout in (logits, logits.contiguous()):
            tokens, logprobs = cpu_kernels.draw_tokens(layout, keys, positions, temperature)
            assert torch.equal(tokens, expected[0])
            exact = scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
            assert torch.allclose(logprobs.double(), exact, atol=1e-5)


@needs_kernels
def test_a_draw_does_not_depend_on_threads_or_on_the_rows_beside_it() -> None:
    logits, positions = torch.randn(5, 3000), torch.arange(5)
    keys = key_tensor([answer_key(0, n) for n in range(5)], "cpu")
    whole = cpu_kernels.draw_tokens(logits, keys, positions, 1.0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            alone = cpu_kernels.draw_tokens(logits[2:3], keys[2:3], positions[2:3], 1.0)
            assert alone[0] == whole[0][2]
            assert torch.allclose(alone[1], whole[1][2], atol=1e-6)
    finally:
        torch.set_num_threads(threads)


@needs_kernels
def test_layers_of_llamas_kind_are_ours_and_others_are_left_alone() -> None:
    for family in ("llama", "qwen2", "qwen3", "mistral"):
        assert isinstance(fused_layers(random_policy(family)), FusedLayers)
    for family in ("gemma2", "phi"):
        assert fused_layers(random_policy(family)) is None


@needs_kernels
def test_weights_that_were_put_elsewhere_are_followed() -> None:
    policy, fresh = random_policy("llama", seed=1), random_policy("llama", seed=2)
    engine = NativeEngine(policy, 8)
    requests = [Request(prompt, (0, 1)) for prompt in PROMPTS]
    generate(engine, requests, Sampling(4))
    with torch.no_grad():
        pairs = zip(policy.model.parameters(), fresh.model.parameters(), strict=True)
        for ours, theirs in pairs:
            ours.data = theirs.detach().clone()
    expected = generate(NativeEngine(fresh, 8), requests, Sampling(12))
    assert tokens_of(generate(engine, requests, Sampling(12))) == tokens_of(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_kernels_the_same_tokens_are_sampled(family: str, no_kernels: None) -> None:
    policy, requests = random_policy(family), [Request(p, (0, 1)) for p in PROMPTS]
    plain = NativeEngine(policy, 16, page=4)
    without = generate(plain, requests, Sampling(12))
    assert plain.scheduler is not None
    assert isinstance(plain.scheduler.decoder.attention.without_triton, PageAttention)
    with pytest.MonkeyPatch.context() as undone:
        for module in ("sampling", "native.cpu_attention", "native.fused_layers"):
            undone.setattr(
                f"groupwise.rollout.{module}.compiled_kernels", cpu_kernels.compiled_kernels
            )
        engine = NativeEngine(policy, 16, page=4)
        assert tokens_of(generate(engine, requests, Sampling(12))) == tokens_of(without)
        assert engine.scheduler is not None
        kind = CpuAttention if cpu_kernels.compiled_kernels() is not None else PageAttention
        assert isinstance(engine.scheduler.decoder.attention.without_triton, kind)


def tokens_of(groups: Sequence[tuple[Completion, ...]]) -> list[list[tuple[int, ...]]]:
    return [[answer.tokens for answer in group] for group in groups]


def test_a_library_is_compiled_once_and_a_failure_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(c_library.NoLibraryError, match="no C compiler"):
        c_library.load_library("cpu_kernels.c")
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho this is broken >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(c_library.NoLibraryError, match="this is broken"):
        c_library.load_library("cpu_kernels.c")
    assert os.listdir(tmp_path / "groupwise" / "kernels") == [], "nothing is left of it"
    monkeypatch.undo()
    if cpu_kernels.compiled_kernels() is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        c_library.load_library("cpu_kernels.c")
        (library,) = (tmp_path / "groupwise" / "kernels").iterdir()
        before = library.stat().st_mtime_ns
        c_library.load_library("cpu_kernels.c")
        assert library.stat().st_mtime_ns == before


def test_a_folder_that_others_may_write_to_is_not_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "groupwise" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(
        c_library.NoLibraryError, match=r"may be written to by others|no C compiler"
    ):
        c_library.load_library("cpu_kernels.c")


@needs_kernels
def test_a_logit_that_is_no_number_shows_in_the_log_prob() -> None:
    logits = torch.zeros(1, 300)
    logits[0, 17] = torch.nan
    keys = key_tensor([1], "cpu")
    _, logprobs = cpu_kernels.draw_tokens(logits, keys, torch.zeros(1, dtype=torch.long), 1.0)
    assert math.isnan(logprobs.item())
