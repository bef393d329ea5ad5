"""Compiled layers and log-probs give the plain ones' numbers. Needs a C++ compiler, so: slow."""

from dataclasses import replace

import pytest
import torch

from groupwise.policy import compiled
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.compiled import compiled_layers, decoder_layers
from groupwise.policy.training_layers import TrainingLayers
from groupwise.recipe import parse
from groupwise.training import update
from small_models import random_groups, random_policy
from updates import accumulate


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["kept", "recomputed", "offloaded"])
@pytest.mark.parametrize("layout", ["padded", "shared_prefix"])
def test_the_gradient_of_compiled_layers_is_the_plain_one(
    layout, activations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(random_policy("qwen2"), layout=layout)
    if activations != "kept":  # backward computes each layer again, and leaves it in the middle
        checkpoint_activations(policy.model, offload=activations == "offloaded")
        policy.model.train()
    groups = random_groups(3, 4, 1)
    grads = []
    for fused in (False, True):
        layers = TrainingLayers(compiled=fused)
        monkeypatch.setattr(update, "training_layers", lambda *_, layers=layers: layers)
        policy.model.zero_grad()
        accumulate(groups, policy, parse({}))
        found = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
        grads.append(torch.cat(found))
    assert not compiled._uncompilable
    assert torch.allclose(grads[0], grads[1], atol=1e-6, rtol=1e-4)


def test_a_layer_that_the_compiler_refuses_is_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel\nand a long story")

    model = random_policy().model
    tokens = torch.tensor([[3, 4, 5]])
    expected = model(tokens).logits
    monkeypatch.setattr(compiled, "compiled_forward", lambda kind: refuse)
    monkeypatch.setattr(compiled, "_uncompilable", set())
    with compiled_layers(model, True):
        assert torch.equal(model(tokens).logits, expected)
    assert caplog.text.count("without torch.compile: no such kernel") == 1
    layers = decoder_layers(model)
    assert layers is not None and "forward" not in vars(layers[0])
