"""Orders, answers and weights survive the trip exactly, and nothing else is taken for them."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from groupwise.remote import worker_payload as payload_module
from groupwise.remote.payload import (
    CHUNK_BYTES,
    BadPayload,
    Checksum,
    PayloadTooLarge,
    WeightsReceiver,
    WeightsStream,
    trained_weights,
)
from groupwise.remote.worker_payload import (
    GenerateRequest,
    ModelLimits,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    split_requests,
)
from groupwise.types import Completion, Request, Sampling
from small_models import VOCAB, random_policy

LIMITS = ModelLimits(VOCAB, 128)
tokens = st.integers(0, VOCAB - 1)
requests = st.builds(
    Request,
    st.lists(tokens, min_size=1, max_size=9).map(tuple),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4).map(tuple),
)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 100),
    temperature=st.floats(0, 3),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 99),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
)
orders = st.builds(
    GenerateRequest,
    st.lists(requests, min_size=1, max_size=5).map(tuple),
    samplings,
    st.just("a-run-of-the-tests"),
    st.integers(0, 10**9),
)


@given(orders)
@settings(max_examples=60, deadline=None)
def test_an_order_arrives_as_it_was_sent(order: GenerateRequest) -> None:
    assert decode_request(encode_request(order), LIMITS) == order


@given(orders, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_answers_arrive_bit_for_bit_and_in_their_places(order: GenerateRequest, seed: int) -> None:
    rng = random.Random(seed)

    def answer() -> Completion:
        size = rng.randint(0, order.sampling.max_tokens)
        drawn = tuple(rng.randrange(VOCAB) for _ in range(size))
        logprobs = tuple(torch.tensor([-rng.random() * 9 for _ in drawn]).tolist())
        stop: Any = rng.choice(["eos", "stop", "length"])
        return Completion(drawn, logprobs, stop, "", order.version)

    answers = [tuple(answer() for _ in request.keys) for request in order.requests]
    body = encode_response(answers, order)
    assert len(body) <= order.max_response_bytes
    assert decode_response(body, order, VOCAB) == answers


ASKED = GenerateRequest(
    (Request((5, 6), (1, 2)), Request((7,), (3,))), Sampling(4), "a-run-of-tests", 3
)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def changed(body: bytes, header: dict[str, str] | None = None, **tensors: Any) -> bytes:
    import json

    size = int.from_bytes(body[:8], "little")
    own = json.loads(body[8 : 8 + size])["__metadata__"]
    found = {**load(body), **tensors}
    return save({k: v for k, v in found.items() if v is not None}, {**own, **(header or {})})


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


GOOD = encode_request(ASKED)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"", "no safetensors"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00", "no safetensors"),  # a pickle
        (changed(GOOD, keys=None), "add up"),
        (changed(GOOD, keys=ints(1, 2, 3)), "keys must be one row of torch.int64"),
        (changed(GOOD, more=ints(1)), "another payload"),
        (changed(GOOD, answers=ints(3, 0)), r"answers\.1: .*equal to 1"),
        (changed(GOOD, answers=ints(2, 2)), "add up"),
        (changed(GOOD, lengths=ints(0, 3)), r"lengths\.0: .*equal to 1"),
        (changed(GOOD, lengths=ints(2, 2)), "add up"),
        (changed(GOOD, lengths=ints(2**31 - 1, 2**31 - 1)), "add up"),
        (changed(GOOD, tokens=ints(5, 6, VOCAB)), f"0 to {VOCAB - 1}"),
        (changed(GOOD, tokens=ints(5, 6, -1)), r"tokens\.2: .*equal to 0"),
        (changed(GOOD, {"version": "-1"}), "version"),
        (changed(GOOD, {"version": "²"}), "no safetensors"),
        (changed(GOOD, {"version": "1.5"}), "version"),
        *(
            (changed(GOOD, {"sampling": text}), "sampling")
            for text in (
                "[]",
                "{}",
                '{"max_tokens": 0}',
                '{"max_tokens": 1e9}',
                '{"max_tokens": 4, "temperature": NaN}',
                '{"max_tokens": 4, "top_p": 0}',
                '{"max_tokens": 4, "stop": [7]}',
                '{"max_tokens": 4, "other": 7}',
            )
        ),
    ],
)
def test_broken_orders_are_refused_with_the_reason(wrong: bytes, says: str) -> None:
    with pytest.raises(BadPayload, match=says):
        decode_request(wrong, LIMITS)


def test_answers_that_the_model_has_no_places_for_are_refused() -> None:
    long = GenerateRequest((Request((5,) * 100, (1,)),), Sampling(30), "a-run-of-tests", 0)
    with pytest.raises(PayloadTooLarge, match="128 places"):
        decode_request(encode_request(long), LIMITS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"header": {"version": "4"}}, "not by 3"),
        ({"header": {"run": '"another"'}}, "this run"),
        ({"tokens": ints(1, 2, 3, VOCAB)}, "0 to 60"),
        *(({"logprobs": torch.tensor([-1, x, -1, -1])}, "finite number") for x in NOT_FINITE),
        ({"logprobs": torch.zeros(3)}, "add up"),
        ({"lengths": ints(1, 5, -2)}, r"lengths\.2"),
        ({"stops": torch.tensor([0, 1, 3], dtype=torch.uint8)}, r"stops\.2"),
        ({"stops": torch.tensor([0, 1], dtype=torch.uint8)}, "not 3 answers"),
        ({"tokens": torch.ones(4)}, "one row of torch.int32"),
    ],
)
def test_replies_of_anything_else_are_refused(change: dict[str, Any], says: str) -> None:
    done = [
        (Completion((1, 2), (-1.0, -2.0), "eos"), Completion((3,), (-1.0,), "stop")),
        (Completion((4,), (-1.0,), "length"),),
    ]
    good = encode_response(done, ASKED)
    assert [len(group) for group in decode_response(good, ASKED, VOCAB)] == [2, 1]
    header = change.pop("header", None)
    with pytest.raises(BadPayload, match=says):
        decode_response(changed(good, header, **change), ASKED, VOCAB)


@given(st.lists(requests, max_size=12), st.integers(1, 6))
def test_work_is_cut_into_whole_neighbours_of_about_one_size(
    asked: list[Request], parts: int
) -> None:
    pieces = split_requests(asked, parts)
    assert [request for piece in pieces for request in piece] == asked
    assert all(pieces)
    assert len(pieces) <= parts
    total, largest = sum(len(r.keys) for r in asked), max((len(r.keys) for r in asked), default=0)
    for piece in pieces:
        assert sum(len(request.keys) for request in piece) < total / parts + largest + 1


def test_no_piece_is_larger_than_an_order_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_module, "MAX_ANSWERS", 10)
    asked = [Request((1, 2), (1, 2, 3)) for _ in range(9)]
    assert [len(piece) for piece in split_requests(asked, 2)] == [3, 2, 2, 2]
    monkeypatch.setattr(payload_module, "MAX_PROMPT_TOKENS", 5)
    assert max(len(piece) for piece in split_requests(asked, 1)) <= 2


def test_each_worker_has_one_piece_where_groups_are_alike() -> None:
    asked = [Request((1,), tuple(range(8))) for _ in range(16)]
    assert [len(piece) for piece in split_requests(asked, 2)] == [8, 8]
    assert [len(piece) for piece in split_requests(asked, 3)] == [6, 5, 5]
    assert [len(piece) for piece in split_requests(asked[:2], 3)] == [1, 1]


def copies(seed: int) -> dict[str, torch.Tensor]:
    return {n: w.clone() for n, w in trained_weights(random_policy(seed=seed)).items()}


@given(st.integers(1, 20_000))
@settings(max_examples=12, deadline=None)
def test_weights_arrive_bit_for_bit_however_the_network_cuts_them(size: int) -> None:
    sent, here = copies(0), copies(1)
    checksum, receiving = Checksum(), WeightsReceiver(here)
    whole = b"".join(checksum.add(piece) for piece in WeightsStream(sent))
    for at in range(0, len(whole), size):
        receiving.feed(whole[at : at + size])
    assert receiving.finish() == str(checksum)
    assert all(torch.equal(sent[name], here[name]) for name in sent)


def test_the_stream_is_a_safetensors_file_in_small_pieces() -> None:
    wide = torch.randn(3, CHUNK_BYTES // 4)
    large = {"w": wide, "b": torch.randn(5).bfloat16(), "none": torch.ones(0)}
    stream = WeightsStream(large)
    pieces = list(stream)
    assert max(map(len, pieces)) <= CHUNK_BYTES and sum(map(len, pieces)) == stream.length
    found = load(b"".join(pieces))
    assert all(torch.equal(found[name], large[name]) for name in large)


def test_weights_of_another_precision_are_rounded_on_arrival() -> None:
    here = {"w": torch.zeros(4, dtype=torch.bfloat16)}
    receiving = WeightsReceiver(here)
    for piece in WeightsStream({"w": torch.tensor([1.0, 1.001, -3.0, 0.1])}):
        receiving.feed(piece)
    receiving.finish()
    assert torch.equal(here["w"], torch.tensor([1.0, 1.001, -3.0, 0.1]).bfloat16())


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"w": torch.zeros(5)}, "other names or shapes"),
        ({"v": torch.zeros(4)}, "other names or shapes"),
        ({"w": torch.zeros(4), "v": torch.zeros(1)}, "other names or shapes"),
        ({"w": torch.zeros(2, 2)}, "other names or shapes"),
    ],
)
def test_weights_of_another_model_are_refused_before_a_value_is_read(
    sent: dict[str, torch.Tensor], says: str
) -> None:
    here = {"w": torch.ones(4)}
    with pytest.raises(BadPayload, match=says):
        for piece in WeightsStream(sent):
            WeightsReceiver(here).feed(piece)
    assert torch.equal(here["w"], torch.ones(4))


def test_torn_and_overlong_streams_and_huge_headers_are_refused() -> None:
    sent = {"w": torch.zeros(4)}
    whole = b"".join(WeightsStream(sent))
    torn = WeightsReceiver({"w": torch.ones(4)})
    torn.feed(whole[:-1])
    with pytest.raises(BadPayload, match="ended before"):
        torn.finish()
    long = WeightsReceiver({"w": torch.ones(4)})
    long.feed(whole)
    with pytest.raises(BadPayload, match="more bytes"):
        long.feed(b"x")
    with pytest.raises(BadPayload, match="no safetensors file"):
        WeightsReceiver(sent).feed((1 << 40).to_bytes(8, "little"))
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}'
    with pytest.raises(BadPayload, match="does not lie behind"):
        WeightsReceiver(sent).feed(len(header).to_bytes(8, "little") + header)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_heads_never_do_worse_than_be_refused(data: st.DataObject) -> None:
    whole = bytearray(b"".join(WeightsStream({"w": torch.zeros(4), "v": torch.ones(2, 3)})))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 41))] = data.draw(st.integers(0, 255))
    receiving = WeightsReceiver({"w": torch.zeros(4), "v": torch.zeros(2, 3)})
    try:
        receiving.feed(bytes(whole))
        receiving.finish()
    except BadPayload:
        return
