"""Sampling lays weights out another way in memory; nobody else may notice."""

import pytest
import torch

from groupwise.rollout.native.weights import WORTHWHILE, laid_out_for_decoding
from small_models import random_policy


def layer(policy):
    return policy.model.model.layers[0].mlp.up_proj


def test_weights_keep_their_values_and_come_back_where_they_were() -> None:
    policy = random_policy("llama")
    weight = layer(policy).weight
    place, values = weight.data_ptr(), weight.detach().clone()
    with laid_out_for_decoding(policy.model, WORTHWHILE):
        assert layer(policy).weight is weight
        assert weight.t().is_contiguous() and not weight.is_contiguous()
        assert torch.equal(weight, values)
    assert weight.data_ptr() == place and weight.is_contiguous()


def test_weights_come_back_when_sampling_fails() -> None:
    policy = random_policy("llama")
    place = layer(policy).weight.data_ptr()
    with pytest.raises(RuntimeError), laid_out_for_decoding(policy.model, WORTHWHILE):
        raise RuntimeError
    assert layer(policy).weight.data_ptr() == place


def test_tied_embeddings_and_short_answers_are_left_alone() -> None:
    policy = random_policy("llama")
    embeddings = policy.model.get_input_embeddings().weight
    assert policy.model.get_output_embeddings().weight is embeddings
    with laid_out_for_decoding(policy.model, WORTHWHILE):
        assert embeddings.is_contiguous()
    with laid_out_for_decoding(policy.model, WORTHWHILE - 1):
        assert layer(policy).weight.is_contiguous()
