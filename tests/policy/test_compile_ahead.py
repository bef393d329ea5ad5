"""Layers are compiled in a thread, on a copy of one of them, before the first update."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.policy import compiled
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.compile_ahead import compile_ahead
from groupwise.policy.compiled import compiled_layers, decoder_layers, in_background
from groupwise.policy.policy import Policy
from groupwise.policy.training_layers import TrainingLayers
from groupwise.recipe import parse
from groupwise.training import update
from small_models import random_groups, random_policy
from updates import accumulate

COMPILED = parse({"compile": "all"})


def packed_policy(family: str = "qwen2") -> Policy:
    return replace(random_policy(family), layout="shared_prefix")


def kind_of(policy: Policy) -> type[torch.nn.Module]:
    layers = decoder_layers(policy.model)
    assert layers is not None
    return type(layers[0])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the threads in which layers ran, none of them compiled."""
    names = list[str]()

    def plain(kind: type[torch.nn.Module]) -> Any:
        def forward(*args: Any, **options: Any) -> Any:
            names.append(threading.current_thread().name)
            return kind.forward(*args, **options)

        return forward

    monkeypatch.setattr(compiled, "compiled_forward", plain)
    yield names


def gradients(policy: Policy) -> torch.Tensor:
    found = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(found) if found else torch.zeros(0)


def test_a_copy_of_a_layer_goes_forward_and_backward_in_a_thread(runs: list[str]) -> None:
    policy = packed_policy()
    with compile_ahead(policy, COMPILED):
        with compiled_layers(policy.model, True):  # waits until that is done
            assert runs == ["compile"]
        assert not len(gradients(policy))  # the model's own layers have none of it
    assert not compiled._in_background


def test_what_is_ahead_is_called_as_the_update_calls_it(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    plain = compiled.compiled_forward

    def noted(kind: type[torch.nn.Module]) -> Any:
        def forward(layer: Any, hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
            what = {name: type(value) for name, value in options.items()}
            state = hidden.requires_grad, hidden.dtype, layer.training, torch.is_grad_enabled()
            calls.append((len(args), what, *state, layer.self_attn.config._attn_implementation))
            return plain(kind)(layer, hidden, *args, **options)

        return forward

    monkeypatch.setattr(compiled, "compiled_forward", noted)
    monkeypatch.setattr(update, "training_layers", lambda *_: TrainingLayers(compiled=True))
    policy = packed_policy()
    with compile_ahead(policy, COMPILED):
        policy.model.train()
        accumulate(random_groups(3, 4, 1), policy, parse({}))
    assert len(calls) == 1 + len(decoder_layers(policy.model) or ())
    assert all(call == calls[0] for call in calls)


@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_the_update_has_the_same_gradient(
    family: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "training_layers", lambda *_: TrainingLayers(compiled=True))
    grads = []
    for ahead in (False, True):
        policy = packed_policy(family)
        with compile_ahead(policy, COMPILED, on=ahead):
            accumulate(random_groups(3, 4, 1), policy, parse({}))
        grads.append(gradients(policy))
    assert torch.equal(*grads)


def test_what_cannot_be_compiled_ahead_is_left_to_the_update(
    runs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="groupwise")

    def refuse(**_: Any) -> torch.Tensor:
        raise ValueError("not this model\nand a long story")

    with compile_ahead(replace(packed_policy(), body=refuse), COMPILED):
        pass
    with compile_ahead(random_policy(), COMPILED):  # whose rows are padded
        pass
    with compile_ahead(packed_policy(), parse({"compile": "none"})):
        pass
    assert not runs
    assert caplog.text.count("layers are not compiled ahead: not this model") == 1


def test_a_failure_in_the_thread_is_left_to_the_update(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="groupwise")

    def fail() -> None:
        raise RuntimeError("no such kernel")

    policy = packed_policy()
    with in_background(kind_of(policy), fail), compiled_layers(policy.model, True):
        assert "not compiled ahead: no such kernel" in caplog.text


def test_a_run_that_ends_early_does_not_wait_for_the_compiler() -> None:
    def compile_for_ever() -> None:
        while True:
            time.sleep(0.001)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), in_background(torch.nn.Module, compile_for_ever):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60
    assert not any(thread.name == "compile" for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [False, True])
def test_the_first_update_compiles_no_layers(
    recomputed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    compiled.compiled_forward.cache_clear()
    counters.clear()
    monkeypatch.setattr(update, "training_layers", lambda *_: TrainingLayers(compiled=True))
    policy = packed_policy()
    if recomputed:
        checkpoint_activations(policy.model, offload=False)
    with compile_ahead(policy, COMPILED), compiled_layers(policy.model, True):
        ahead = dict(counters["stats"])
    assert ahead["unique_graphs"] > 0
    policy.model.train()
    for groups in (random_groups(3, 4, 1), random_groups(5, 3, 2)):
        accumulate(groups, policy, parse({}))
    assert dict(counters["stats"]) == ahead
