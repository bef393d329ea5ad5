"""Bytes between GPUs, by arithmetic that can be done by hand."""

import dataclasses

import pytest

from groupwise.check.plan import GPUS, Job, make_plan, shape_of
from groupwise.check.plan.traffic import push_bytes, traffic

SHAPE = shape_of("shape:8b")
WEIGHTS = SHAPE.parameters
JOB = Job(64, 8, 200, 256, world=8, sharding="ddp")  # 8 groups a GPU: two micro-batches


def parts(**changes: object) -> dict[str, float]:
    found = traffic(SHAPE, dataclasses.replace(JOB, **changes)).parts  # pyright: ignore[reportArgumentType]
    return {name: sent / (7 / 8) for name, sent in found.items() if name != "rollouts"}


def test_one_gpu_sends_nothing() -> None:
    assert parts(world=1, sharding="none") == {}


def test_ddp_sums_fp32_gradients_once_a_step() -> None:
    assert parts() == {"gradients summed": pytest.approx(2 * 4 * WEIGHTS)}
    adapter = SHAPE.adapter(16)
    assert parts(rank=16) == {"gradients summed": pytest.approx(2 * 4 * adapter)}
    assert parts(epochs=3)["gradients summed"] == pytest.approx(3 * 2 * 4 * WEIGHTS)


def test_fsdp2_gathers_twice_and_scatters_once_a_micro_batch() -> None:
    assert len(JOB.microbatches()) == 2
    found = parts(sharding="fsdp2")
    assert found["weights gathered"] == pytest.approx(2 * 2 * 2 * WEIGHTS)
    assert found["gradients scattered"] == pytest.approx(2 * 4 * WEIGHTS)
    assert found["whole copy"] == pytest.approx(4 * WEIGHTS)
    again = parts(sharding="fsdp2", old_logprobs=True)
    assert again["weights gathered"] == pytest.approx(3 * 2 * 2 * WEIGHTS)
    three = parts(sharding="zero3")
    assert three == {**found, "whole copy": pytest.approx(2 * WEIGHTS)}


def test_each_gpu_sends_its_own_answers_to_the_first() -> None:
    sent = traffic(SHAPE, JOB).parts["rollouts"]
    assert sent == pytest.approx(
        7 / 8 * (64 * 8 * 256 * 32) / 8
    )  # on average: the first sends none
    more = dataclasses.replace(JOB, prompts=128, world=16)
    assert traffic(SHAPE, more).parts["rollouts"] == pytest.approx(15 / 16 * sent / (7 / 8))


def test_zero_1_and_2_gather_new_weights_once() -> None:
    one, two = parts(sharding="zero1"), parts(sharding="zero2")
    assert one["weights gathered"] == two["weights gathered"] == pytest.approx(2 * WEIGHTS)
    assert two["gradients scattered"] == 2 * one["gradients scattered"]


def test_a_sampler_gets_the_weights_or_the_adapter_alone() -> None:
    assert push_bytes(SHAPE, JOB) == 2 * WEIGHTS
    assert push_bytes(SHAPE, dataclasses.replace(JOB, rank=16)) == 2 * SHAPE.adapter(16)


def test_samplers_elsewhere_are_sent_weights_and_cost_no_time_here() -> None:
    plan = make_plan(SHAPE, dataclasses.replace(JOB, engine="elsewhere"), GPUS["h100"])
    assert plan.traffic.pushed == 2 * WEIGHTS and "sampling" not in plan.seconds
    assert make_plan(SHAPE, JOB, GPUS["h100"]).traffic.pushed == 0


def test_beyond_one_machine_eight_network_cards_are_what_counts() -> None:
    near = make_plan(SHAPE, JOB, GPUS["h100"])
    far = make_plan(SHAPE, dataclasses.replace(JOB, world=16), GPUS["h100"])
    per_byte = [p.seconds["communication"] / p.traffic.total for p in (near, far)]
    assert per_byte[1] / per_byte[0] == pytest.approx(450 / (8 * 50))
