"""What to change so that it fits: as little as possible, and it is true."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from groupwise.check.plan import GPUS, Job, advise, job_of, make_plan, shape_of
from groupwise.check.plan.show import plan_text
from groupwise.cli.main import app
from groupwise.errors import ModelError
from groupwise.recipe import parse

WORK = Job(16, 8, 200, 256, mean_answer=256.0)


def test_what_fits_needs_no_advice() -> None:
    assert advise(make_plan(shape_of("shape:0.5b"), WORK, GPUS["h200"])) == []


def test_one_change_is_preferred_to_two_and_the_faster_to_the_slower() -> None:
    job = dataclasses.replace(WORK, rank=16)
    plan = make_plan(shape_of("shape:3b"), job, GPUS["rtx4090"])
    (advice,) = advise(plan)
    assert len(advice.settings) == 1 and advice.plan.fits and not plan.fits
    others = [{"checkpointing": True}, *({"tokens_per_microbatch": 2**n} for n in range(9, 14))]
    tried = [make_plan(plan.shape, dataclasses.replace(job, **o), plan.gpu) for o in others]  # pyright: ignore[reportArgumentType]
    assert advice.plan.step == min(other.step for other in tried if other.fits)


def test_what_changes_the_result_comes_after_what_does_not() -> None:
    job = Job(16, 8, 64, 48, mean_answer=48.0)
    plan = make_plan(shape_of("shape:8b"), job, GPUS["h100"])
    same, adapter = advise(plan)
    assert "optimizer.offload=true" in same.settings
    assert adapter.settings[0] == "adapter=lora" and adapter.plan.step < same.plan.step


def test_several_gpus_are_told_to_share() -> None:
    job = dataclasses.replace(WORK, prompts=64, world=8, sharding="ddp")
    first = advise(make_plan(shape_of("shape:8b"), job, GPUS["h100"]))[0]
    assert "distributed.kind=fsdp2" in first.settings and first.plan.fits


def test_the_hopeless_is_called_so() -> None:
    plan = make_plan(shape_of("shape:70b"), WORK, GPUS["rtx3060"])
    assert advise(plan) == []
    assert "nothing of ours makes it fit on rtx3060" in plan_text(plan)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from(["0.5b", "3b", "8b", "32b"]),
    gpu=st.sampled_from(sorted(GPUS)),
    prompts=st.integers(1, 64),
    answer=st.integers(1, 2000),
)
def test_advice_is_true(shape: str, gpu: str, prompts: int, answer: int) -> None:
    """Given to the command line as it is said, the plan fits."""
    base = {
        "batch": {"prompts": prompts},
        "rollout": {"max_prompt_tokens": 200, "max_completion_tokens": answer},
        "steps": 200,
    }
    found = shape_of(f"shape:{shape}")
    for advice in advise(make_plan(found, job_of(parse(base)), GPUS[gpu])):
        again = make_plan(found, job_of(parse(base, advice.settings)), GPUS[gpu])
        assert again.fits and again.memory.peak == pytest.approx(advice.plan.memory.peak)


def check(*words: str) -> str:
    result = CliRunner().invoke(app, ["check", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_check_plans_for_a_gpu_that_is_not_here_and_tries_nothing() -> None:
    text = check("--model", "shape:8b", "--gpu", "h100")
    assert "DOES NOT FIT" in text and "try        optimizer.offload=true" in text
    assert "or         adapter=lora" in text and "a trial" not in text
    shared = check("--model", "shape:8b", "--gpu", "h100", "--gpus", "8", "distributed.kind=zero3")
    assert "8 x h100 (zero3)" in shared and "weights gathered" in shared


def test_check_says_when_a_model_cannot_be_planned() -> None:
    with pytest.raises(ModelError, match="shape:9b"):
        check("--model", "shape:9b", "--gpu", "h100")
