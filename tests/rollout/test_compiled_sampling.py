"""Sampling with compiled layers on a CPU draws the plain ones' tokens. Compiles C++, so: slow."""

import pytest
import torch

from engines import generate
from groupwise.load import make_engine
from groupwise.policy import compiled
from groupwise.policy.compiled import compiles_sampling
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Request, Sampling
from small_models import random_policy

REQUESTS = [Request((3, 4, 5, 6), (1, 2, 3)), Request((7, 8), (4, 5))]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_tokens_and_log_probs_are_the_plain_ones(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_uncompilable", set())
    policy, sampling = random_policy(family), Sampling(max_tokens=12)
    plain = generate(NativeEngine(policy, 8), REQUESTS, sampling)
    engine = NativeEngine(policy, 8, compile_layers=True)
    found = generate(engine, REQUESTS, sampling)
    assert not compiled._uncompilable
    for ours, theirs in zip(found, plain, strict=True):
        assert [a.tokens for a in ours] == [a.tokens for a in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("chosen", "compiled"), [("auto", False), ("all", True), ("sampling", True), ("none", False)]
)
def test_on_a_cpu_nothing_is_compiled_unless_asked_for(chosen: str, compiled: bool) -> None:
    config = parse({"engine": {"kind": "native"}, "compile": chosen})
    engine = make_engine(random_policy(), config)
    assert isinstance(engine, NativeEngine) and engine.compiled is compiled
    assert compiles_sampling(torch.device("cuda"), config) is (chosen != "none")
