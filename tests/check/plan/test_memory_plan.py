"""What a plan says a part takes is what torch, the batches and the optimizer make of it."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.batch import make_batch
from groupwise.check.plan import GPUS, Job, Shape, make_plan, shape_of
from groupwise.check.plan.memory import held_bytes, layer_kept, memory, trained, weights_bytes
from groupwise.config import AdapterSettings, OptimizerSettings
from groupwise.policy.adapters import add_adapter
from groupwise.policy.footprint import footprint
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.load import make_policy
from groupwise.policy.packing import microbatches
from groupwise.types import Completion, Group, Problem
from small_models import random_model, tokenizer

WORK = Job(32, 8, 200, 256)
SHAPE_8B = shape_of("shape:8b")
H200 = GPUS["h200"]


def fixed_groups(prompts: int, size: int, prompt: int, answer: int) -> list[Group]:
    one = Completion((5,) * answer, (0.0,) * answer, "length")
    return [Group(Problem(str(n), "?"), (3,) * prompt, (one,) * size) for n in range(prompts)]


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.integers(1, 9),
    size=st.integers(2, 6),
    prompt=st.integers(1, 40),
    answer=st.integers(2, 40),
    budget=st.integers(1, 400),
    shared=st.booleans(),
)
def test_micro_batches_are_those_that_training_makes(
    prompts: int, size: int, prompt: int, answer: int, budget: int, shared: bool
) -> None:
    job = Job(
        prompts, size, prompt, answer, tokens_per_microbatch=budget, shared_prefix=shared
    )  # fmt: skip
    layout = "shared_prefix" if shared else "padded"
    batch = make_batch(fixed_groups(prompts, size, prompt, answer))
    rows = [micro.rows for micro in microbatches(batch, layout, budget)]
    tokens = sorted((row.tokens_RS.numel() for row in rows), reverse=True)
    assert sorted(job.microbatches(), reverse=True) == tokens


def saved_bytes(model: Any, job: Job) -> int:
    """Bytes that autograd keeps of a real forward pass, weights left out."""
    policy = make_policy(model, tokenizer(), "shared_prefix")
    groups = fixed_groups(job.prompts, job.group_size, job.prompt_tokens, job.answer_tokens)
    (micro,) = microbatches(make_batch(groups), "shared_prefix", 10**6)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)  # alive, so that no other gets its place
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer_logprobs(policy, micro.rows, 1.0)
    return sum(kept.values())


def small_shape(model: Any) -> Shape:
    config = model.config
    return Shape(
        "small", config.hidden_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.intermediate_size, config.vocab_size, tied=True,
    )  # fmt: skip


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_what_autograd_keeps(rank: int, dtype: torch.dtype) -> None:
    """Beside the layers: the last norm, the logits, rotations and masks, which are no part."""
    model = random_model("llama", dtype)
    if rank:
        add_adapter(model, AdapterSettings(rank=rank), dtype, seed=0)
    precision = "fp32" if dtype == torch.float32 else "bf16"
    job = Job(6, 4, 30, 40, rank=rank, precision=precision)
    shape = small_shape(model)
    (tokens,) = job.microbatches()
    planned = tokens * shape.layers * layer_kept(shape, job, packed=False)
    found = saved_bytes(model, job)
    beside = tokens * (shape.hidden * (4 + 3 * job.number) + shape.vocab * 4)
    assert planned == pytest.approx(found - beside, rel=0.15)


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
@pytest.mark.parametrize("rank", [0, 8])
def test_what_is_held_is_what_training_says_at_its_start(kind: Any, rank: int) -> None:
    model = random_model("llama", torch.bfloat16)
    if rank:
        add_adapter(model, AdapterSettings(rank=rank), torch.bfloat16, seed=0)
    said = footprint(model, OptimizerSettings(kind=kind))
    shape, job = small_shape(model), Job(1, 2, 4, 4, rank=rank, eight_bit=kind != "adamw")
    held = held_bytes(shape, job)
    assert trained(shape, job) == said.trainable
    assert weights_bytes(shape, job) == said.weights
    assert held.parts["masters"] + held.parts["moments"] + held.gradients == said.training


def test_4_bits_take_a_little_more_than_half_a_byte() -> None:
    """6.5 GB in docs/adapters.md, of which 2.1 GB embeddings and head, and 0.8 GB its training."""
    job = Job(8, 8, 200, 256, rank=16, quantization="nf4")
    assert weights_bytes(SHAPE_8B, job) / 1e9 == pytest.approx(5.79, abs=0.02)
    whole = weights_bytes(SHAPE_8B, dataclasses.replace(job, quantization=None))
    eight = weights_bytes(SHAPE_8B, dataclasses.replace(job, quantization="int8"))
    assert whole / 1e9 == pytest.approx(16.14, abs=0.02)
    assert eight / 1e9 == pytest.approx(9.17, abs=0.03)


def test_8_b_in_4_bits_trains_within_16_gib_and_70_percent_below_the_full_fine_tune() -> None:
    job = Job(8, 8, 200, 256, tokens_per_microbatch=8192, checkpointing=True)
    small = memory(SHAPE_8B, dataclasses.replace(job, rank=16, quantization="nf4"), H200)
    assert small.peak < 16 * 2**30
    assert small.tensors < 0.3 * memory(SHAPE_8B, job, H200).tensors


def test_weights_in_8_bits_are_a_copy_of_the_layers_that_sample_here() -> None:
    job = dataclasses.replace(WORK, samples_in_fp8=True)
    more = held_bytes(SHAPE_8B, job).total - held_bytes(SHAPE_8B, WORK).total
    assert 0.8 * SHAPE_8B.parameters < more < SHAPE_8B.parameters
    elsewhere = dataclasses.replace(job, engine="elsewhere")
    assert held_bytes(SHAPE_8B, elsewhere).parts["weights in 8 bits"] == 0


def test_sharding_divides_what_it_says() -> None:
    """Whole weights stay on every GPU for sampling; FSDP2's own are the masters."""
    parts = {}
    for kind in ("ddp", "zero1", "zero2", "zero3", "fsdp2"):
        held = held_bytes(SHAPE_8B, dataclasses.replace(WORK, world=8, sharding=kind))
        assert held.parts["weights"] == 2 * SHAPE_8B.parameters
        assert held.parts["masters"] * 2 == held.parts["moments"]
        parts[kind] = (held.parts["weight shards"], held.parts["moments"], held.gradients)
    count = SHAPE_8B.parameters
    assert parts["ddp"] == (0, 8 * count, 4 * count)
    assert parts["zero1"] == (0, count, 4 * count)
    assert parts["zero2"] == (0, count, count / 2)
    assert parts["zero3"] == (count / 4, count, count / 2)
    assert parts["fsdp2"] == (0, count, count / 2)


def test_shards_that_others_sample_for_need_no_whole_copy() -> None:
    for kind in ("fsdp2", "zero3"):
        job = dataclasses.replace(WORK, world=8, sharding=kind, engine="elsewhere")
        assert held_bytes(SHAPE_8B, job).parts["weights"] == 0
        for change in ({"rank": 16}, {"reference_moves": True}, {"engine": "native"}):
            changed = dataclasses.replace(job, **change)
            assert held_bytes(SHAPE_8B, changed).parts["weights"] == weights_bytes(
                SHAPE_8B, changed
            )
    for kind in ("ddp", "zero2"):
        job = dataclasses.replace(WORK, world=8, sharding=kind, engine="elsewhere")
        assert held_bytes(SHAPE_8B, job).parts["weights"] == 2 * SHAPE_8B.parameters


def test_offloading_moves_bytes_to_the_cpu_and_loses_none() -> None:
    whole = held_bytes(SHAPE_8B, WORK)
    away = held_bytes(SHAPE_8B, dataclasses.replace(WORK, offload_optimizer=True))
    assert away.host == whole.gradients + whole.parts["masters"] + whole.parts["moments"]
    assert away.total == whole.parts["weights"] and away.gradients == 0


def test_the_cache_takes_no_more_than_the_engine_would() -> None:
    """0.8 of what is free, however many answers are wanted."""
    job = dataclasses.replace(WORK, prompts=512, answer_tokens=8192, rank=16, max_batch=4096)
    plan = make_plan(SHAPE_8B, job, H200)
    free = H200.memory - plan.memory.sampling["weights"]
    assert 0.7 * free < plan.memory.sampling["cache"] <= 0.8 * free


JOBS = st.builds(
    Job,
    prompts=st.integers(1, 64),
    group_size=st.integers(2, 16),
    prompt_tokens=st.integers(1, 2000),
    answer_tokens=st.integers(1, 4000),
    mean_answer=st.none() | st.floats(1, 4000),
    rank=st.sampled_from([0, 16]),
    sharding=st.sampled_from(["ddp", "fsdp2", "zero1", "zero2", "zero3"]),
    world=st.integers(1, 512),
    tokens_per_microbatch=st.integers(1, 65536),
)


@settings(max_examples=150, deadline=None)
@given(job=JOBS)
def test_savings_save_and_cost_time(job: Job) -> None:
    shape = shape_of("shape:0.5b")
    plain = make_plan(shape, job, H200)
    again = make_plan(shape, dataclasses.replace(job, checkpointing=True), H200)
    parked = make_plan(shape, dataclasses.replace(job, checkpointing="offload"), H200)
    eight = make_plan(shape, dataclasses.replace(job, eight_bit=True), H200)
    assert parked.memory.tensors <= again.memory.tensors
    assert eight.memory.tensors <= plain.memory.tensors
    assert again.step >= plain.step > 0
    for plan in (plain, again, parked, eight):
        assert min(plan.memory.update.values()) >= 0 and min(plan.seconds.values()) >= 0
