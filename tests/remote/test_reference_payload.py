"""Bodies survive the trip exactly, and nothing else is taken for one."""

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from groupwise.batch import make_batch
from groupwise.policy.packing import microbatches
from groupwise.remote.payload import ModelLimits
from groupwise.remote.reference_payload import (
    BadPayload,
    LogprobsRequest,
    PayloadTooLarge,
    ReferenceLimits,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    row_tokens,
)
from groupwise.types import Completion, Group, Problem
from small_models import VOCAB, random_groups

LIMITS = ReferenceLimits(4096, ModelLimits(VOCAB, 128))
HEADER = {"temperature": "1.0", "layout": '"shared_prefix"', "exact": "true"}

token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=12)


@st.composite
def questions(draw: Any) -> LogprobsRequest:
    spread = draw(st.booleans())
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        answers = draw(st.lists(token_lists, min_size=1, max_size=4))
        heats = [draw(st.floats(0.25, 2, width=32)) if spread else None for _ in answers]
        groups.append(
            Group(
                Problem("", ""),
                tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9))),
                tuple(
                    Completion(tuple(a), (0.0,) * len(a), "eos", temperature=h)
                    for a, h in zip(answers, heats, strict=True)
                ),
            )
        )
    layout = draw(st.sampled_from(["shared_prefix", "padded"]))
    return LogprobsRequest(tuple(groups), draw(st.floats(0.1, 5)), layout, draw(st.booleans()))


@given(questions())
@settings(max_examples=60, deadline=None)
def test_a_question_arrives_as_it_was_sent(question: LogprobsRequest) -> None:
    assert decode_request(encode_request(question), LIMITS) == question


@given(questions())
@settings(max_examples=40, deadline=None)
def test_log_probs_arrive_bit_for_bit_and_in_their_places(question: LogprobsRequest) -> None:
    rng = random.Random(0)
    answers = [
        tuple(torch.tensor([-rng.random() * 9 for _ in c.tokens]).tolist())
        for group in question.groups
        for c in group.completions
    ]
    body = encode_response(answers, "m1")
    assert len(body) <= question.max_response_bytes
    logprobs, model = decode_response(body, question)
    assert model == "m1" and logprobs == answers


@given(questions())
@settings(max_examples=40, deadline=None)
def test_what_is_within_the_token_limit_is_one_micro_batch(question: LogprobsRequest) -> None:
    """So a server runs a question as the trainer cut it."""
    groups, layout = question.groups, question.layout
    if layout == "padded":
        groups = tuple(
            Group(g.problem, g.prompt_tokens, (c,)) for g in groups for c in g.completions
        )
    (micro,) = microbatches(make_batch(groups), layout, row_tokens(groups, layout))
    assert row_tokens(groups, layout) == micro.rows.tokens_RS.numel()


def body(tensors: dict[str, Any] | None = None, **header: str) -> bytes:
    """A good question of two groups (a prompt and two answers each), with parts replaced."""
    good = {
        "tokens": torch.tensor([5, 6, 7, 8, 9, 10], dtype=torch.int32),
        "lengths": torch.tensor([1, 1, 1, 1, 2, 0], dtype=torch.int32),
        "answers": torch.tensor([2, 2], dtype=torch.int32),
    }
    found = {**good, **(tensors or {})}
    return save({k: v for k, v in found.items() if v is not None}, {**HEADER, **header})


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_the_body_that_is_broken_below_is_good() -> None:
    question = decode_request(body(), LIMITS)
    assert [g.prompt_tokens for g in question.groups] == [(5,), (8,)]
    assert [c.tokens for g in question.groups for c in g.completions] == [(6,), (7,), (9, 10), ()]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"", "no safetensors"),
        (b"\x00" * 8, "no safetensors"),
        (b"\xff" * 64, "no safetensors"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00", "no safetensors"),  # a pickle
        ((2).to_bytes(8, "little") + b"{}", "temperature: Field required|answers: .*at least 1"),
        (body({"tokens": None}), "add up"),
        (body({"more": ints(1)}), "more must be one row of another payload"),
        (body({"tokens": torch.arange(6)}), "int32"),
        (body({"tokens": torch.ones(6)}), "int32"),
        (body({"lengths": ints(1, 1, 1, 1, 2, 0).view(2, 3)}), "one row"),
        (body({"answers": torch.tensor(2, dtype=torch.int32)}), "one row"),
        (body({"answers": ints()}), "answers: .*at least 1"),
        (body({"answers": ints(4, 0)}), r"answers\.1: .*equal to 1"),
        (body({"answers": ints(2, 3)}), "add up"),
        (body({"answers": ints(2**31 - 1, 2**31 - 1)}), "add up"),
        (body({"lengths": ints(1, 1, 1, 1, 2, 9)}), "add up"),
        (body({"lengths": ints(1, 1, 1, 1, 8, -6)}), r"lengths\.5: .*equal to 0"),
        (body({"lengths": ints(1, 1, 1, 0, 2, 1)}), "prompt"),
        (body({"tokens": ints(5, 6, 7, 8, 9, VOCAB)}), f"0 to {VOCAB - 1}"),
        (body({"tokens": ints(5, -1, 7, 8, 9, 1)}), r"tokens\.1: .*equal to 0"),
        (body({"temperatures": torch.ones(3)}), "add up"),
        (body({"temperatures": torch.tensor([1.0, 0.0, 1.0, 1.0])}), "temperatures"),
        (body({"temperatures": torch.tensor([1.0, torch.nan, 1.0, 1.0])}), "temperatures"),
        (body({"temperatures": torch.ones(4, dtype=torch.float64)}), "temperatures"),
        (body(layout='"diagonal"'), "layout"),
        (body(exact='"maybe"'), "exact"),
        *((body(temperature=t), "temperature") for t in ("0", "-1", "NaN", "Infinity", '"hot"')),
        *((body(temperature=t), "no safetensors") for t in ("", "nan", "hot")),
    ],
)
def test_broken_bodies_are_refused_with_the_reason(wrong: bytes, says: str) -> None:
    with pytest.raises(BadPayload, match=says):
        decode_request(wrong, LIMITS)


def test_sizes_are_bounded() -> None:
    question = LogprobsRequest(tuple(random_groups(3, 4)), 1.0, "shared_prefix", True)
    exact = row_tokens(question.groups, "shared_prefix")
    decode_request(encode_request(question), ReferenceLimits(exact, ModelLimits(VOCAB, None)))
    with pytest.raises(PayloadTooLarge, match=f"takes {exact - 1}"):
        decode_request(
            encode_request(question), ReferenceLimits(exact - 1, ModelLimits(VOCAB, None))
        )
    with pytest.raises(PayloadTooLarge, match="positions"):
        decode_request(encode_request(question), ReferenceLimits(exact, ModelLimits(VOCAB, 5)))
    with pytest.raises(PayloadTooLarge, match="bytes"):
        decode_request(b"\x00" * (LIMITS.body_bytes + 1), LIMITS)
    header = json.dumps({"__metadata__": {"x": "y" * 5000}}).encode()
    with pytest.raises(BadPayload):
        decode_request(len(header).to_bytes(8, "little") + header, LIMITS)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_never_do_worse_than_be_refused(data: st.DataObject) -> None:
    damaged = bytearray(body())
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = (
        damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    )
    try:
        question = decode_request(bytes(cut), LIMITS)
    except BadPayload:
        return
    assert question.tokens <= LIMITS.tokens
    stretches = [
        s for g in question.groups for s in (g.prompt_tokens, *(c.tokens for c in g.completions))
    ]
    assert all(0 <= token < VOCAB for stretch in stretches for token in stretch)


@pytest.mark.parametrize(
    "wrong", [torch.ones(2), torch.ones(3).double(), torch.tensor([0, torch.nan, 0])]
)
def test_a_reply_of_other_numbers_is_refused(wrong: torch.Tensor) -> None:
    group = Group(Problem("", ""), (1,), (Completion((4, 5, 6), (0.0,) * 3, "eos"),))
    question = LogprobsRequest((group,), 1.0, "padded", True)
    with pytest.raises(BadPayload):
        decode_response(save({"logprobs": wrong}, {"model": '"m"'}), question)
    assert decode_response(save({"logprobs": -torch.ones(3)}, {"model": '""'}), question) == (
        [(-1.0,) * 3],
        "",
    )
    assert load(encode_response([[1.0] * 3], "m"))["logprobs"].shape == (3,)
