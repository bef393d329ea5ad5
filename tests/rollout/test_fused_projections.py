"""Linear layers computed together: the same numbers, and parameters that stay what they were."""

import pytest
import torch
from torch import nn

from groupwise.policy.compiled import decoder_layers
from groupwise.rollout.native.fused_projections import FusedProjections, fuse_projections
from small_models import FAMILIES, random_model

TOKENS = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.parametrize("family", FAMILIES)
def test_fusing_changes_no_logits_and_no_parameters(family: str, tmp_path) -> None:
    model = random_model(family)
    layers = decoder_layers(model)
    assert layers is not None and len(layers) == model.config.num_hidden_layers
    before = {name: p.clone() for name, p in model.named_parameters()}
    expected = model(TOKENS).logits
    fused = FusedProjections(layers)
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert fused.is_valid
    with fused.in_use():
        assert torch.allclose(model(TOKENS).logits, expected, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in again.named_parameters())


def test_an_update_of_a_parameter_reaches_the_fused_product() -> None:
    model = random_model("qwen2")
    layer = model.model.layers[0]
    (first, *_) = fuse_projections(layer)
    own = layer.self_attn.q_proj.weight
    with torch.no_grad():
        own.add_(1.0)
    fused = first[2].weight
    assert isinstance(fused, nn.Parameter) and torch.equal(fused[: len(own)], own)


def test_weights_that_were_put_elsewhere_are_noticed() -> None:
    model = random_model("llama")
    fused = FusedProjections([model.model.layers[0]])
    assert fused.is_valid
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()
    assert not fused.is_valid


def test_fusing_again_moves_nothing() -> None:
    model = random_model("qwen2")
    layers = [model.model.layers[0]]
    first = FusedProjections(layers)
    FusedProjections(layers)
    assert first.is_valid


def test_weights_inside_another_buffer_stay_there() -> None:
    """An optimizer that updates that buffer must go on updating the model."""
    model = random_model("llama")
    attention = model.model.layers[0].self_attn
    parts = [attention.v_proj, attention.q_proj, attention.k_proj]  # not in the order of a product
    buffer = torch.cat([part.weight.data.flatten() for part in parts])
    for part, flat in zip(parts, buffer.split([p.weight.numel() for p in parts]), strict=True):
        part.weight.data = flat.view_as(part.weight)
    fused = FusedProjections([model.model.layers[0]])
    names = [name for _, name, _ in fused.replacements]
    assert "q_proj" not in names and "up_proj" in names
    buffer.zero_()
    assert attention.q_proj.weight.abs().max() == 0


def test_weights_that_lie_together_in_a_buffer_are_fused_where_they_are() -> None:
    model = random_model("llama")
    attention = model.model.layers[0].self_attn
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    expected = model(TOKENS).logits
    buffer = torch.cat([torch.zeros(7), *(part.weight.data.flatten() for part in parts)])
    sizes = [7, *(part.weight.numel() for part in parts)]
    for part, flat in zip(parts, buffer.split(sizes)[1:], strict=True):
        part.weight.data = flat.view_as(part.weight)
    fused = FusedProjections([model.model.layers[0]])
    with fused.in_use():
        assert torch.allclose(model(TOKENS).logits, expected, atol=1e-5)
        buffer.zero_()
        assert not torch.allclose(model(TOKENS).logits, expected, atol=1e-5)
