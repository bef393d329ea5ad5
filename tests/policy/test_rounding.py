"""A model that rounds more than others is compared by its own measure, within bounds."""

from typing import Any

import pytest
import torch

from groupwise import load
from groupwise.errors import ModelError
from groupwise.load import make_engine
from groupwise.policy.rounding import logprob_tolerance, rounding_noise
from groupwise.recipe.parse import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.transformers import TransformersEngine
from small_models import random_policy


def noisy(policy: Any, noise: float) -> Any:
    """Hidden states of single tokens come out a little different from those of many."""

    def disturb(_: Any, __: Any, output: Any) -> Any:
        if output.last_hidden_state.shape[1] == 1:
            generator = torch.Generator().manual_seed(0)
            shape = output.last_hidden_state.shape
            output.last_hidden_state += noise * torch.randn(shape, generator=generator)
        return output

    policy.model.get_decoder().register_forward_hook(disturb)
    return policy


def test_the_tolerance_is_the_usual_one_where_a_model_hardly_rounds() -> None:
    policy = random_policy()
    assert 0 <= rounding_noise(policy) < 2e-4
    assert logprob_tolerance(policy, half=0.25) == 1e-3


def test_a_model_that_rounds_more_is_given_more_but_not_anything() -> None:
    noise = rounding_noise(noisy(random_policy(), 1e-3))
    assert 2.5e-4 < noise < 2.5e-3
    assert logprob_tolerance(noisy(random_policy(), 1e-3), half=0.25) == pytest.approx(4 * noise)
    assert logprob_tolerance(noisy(random_policy(), 1.0), half=0.25) == 1e-2


def test_an_engine_asked_for_by_name_is_used_or_the_run_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(make_engine(random_policy(), parse({"engine": "native"})), NativeEngine)
    monkeypatch.setattr(load, "native_engine_problem", lambda policy: "it has no attention")
    assert isinstance(make_engine(random_policy(), parse({"engine": "auto"})), TransformersEngine)
    with pytest.raises(ModelError, match=r"native cannot serve .*it has no attention\. With"):
        make_engine(random_policy(), parse({"engine": "native"}))
