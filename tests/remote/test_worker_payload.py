"""Orders, answers and weights survive the trip exactly, and nothing else is taken for them."""

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from groupwise.policy.weights import trained_weights
from groupwise.remote import worker_payload as payload_module
from groupwise.remote.payload import (
    CHUNK_BYTES,
    BadPayload,
    Checksum,
    ModelLimits,
    PayloadTooLarge,
    Weights,
    WeightsStream,
    frame,
    max_weights_bytes,
    received_weights,
)
from groupwise.remote.worker_payload import (
    GenerateRequest,
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
    st.integers(0, 10**9) | st.none(),
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
        if order.version is not None or size < 2:
            return Completion(drawn, logprobs, stop, "", order.version or 0)
        starts = [0, *sorted(rng.sample(range(1, size), rng.randint(0, size - 1)))]
        parts = tuple((start, 7 + n) for n, start in enumerate(starts))
        return Completion(drawn, logprobs, stop, "", 7, versions=parts if len(parts) > 1 else ())

    sizes = 0
    for request in order.requests:
        answers = tuple(answer() for _ in request.keys)
        body = encode_response(answers, order.run)
        assert decode_response(body, request, order, VOCAB) == answers
        sizes += len(frame(200, 0, body))
    assert sizes <= order.max_response_bytes


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


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


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
    with pytest.raises(PayloadTooLarge, match="128 positions"):
        decode_request(encode_request(long), LIMITS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"versions": longs(3, 4)}, r"by weights \[3, 4\], not by 3"),
        ({"header": {"run": '"another"'}}, "this run"),
        ({"tokens": ints(1, 2, VOCAB)}, "0 to 60"),
        ({"parts": ints(1, 2)}, "add up"),
        ({"parts": ints(1)}, "not hold 2 answers"),
        ({"parts": ints(2, 0)}, r"parts\.1"),
        ({"starts": ints(0, 1)}, "do not join"),
        ({"starts": ints(0, 0, 0)}, "starts and versions"),
        ({"versions": longs(3, -1)}, r"versions\.1"),
        *(({"logprobs": torch.tensor([-1, x, -1])}, "finite number") for x in NOT_FINITE),
        ({"logprobs": torch.zeros(2)}, "add up"),
        ({"lengths": ints(5, -2)}, r"lengths\.1"),
        ({"stops": torch.tensor([0, 3], dtype=torch.uint8)}, r"stops\.1"),
        ({"stops": torch.tensor([0], dtype=torch.uint8)}, "not hold 2 answers"),
        ({"tokens": torch.ones(3)}, "one row of torch.int32"),
    ],
)
def test_replies_of_anything_else_are_refused(change: dict[str, Any], says: str) -> None:
    done = (
        Completion((1, 2), (-1.0, -2.0), "eos", version=3),
        Completion((3,), (-1.0,), "stop", version=3),
    )
    request, good = ASKED.requests[0], encode_response(done, ASKED.run)
    assert decode_response(good, request, ASKED, VOCAB) == done
    header = change.pop("header", None)
    with pytest.raises(BadPayload, match=says):
        decode_response(changed(good, header, **change), request, ASKED, VOCAB)


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


def receive(pieces: Iterable[bytes], targets: Weights) -> str:
    checksum = Checksum()
    for name, weight in received_weights(pieces, targets, checksum):
        assert weight is targets[name]
    return str(checksum)


def copies(seed: int) -> dict[str, torch.Tensor]:
    return {n: w.clone() for n, w in trained_weights(random_policy(seed=seed)).items()}


@given(st.integers(1, 20_000))
@settings(max_examples=12, deadline=None)
def test_weights_arrive_bit_for_bit_however_the_network_cuts_them(size: int) -> None:
    sent, here = copies(0), copies(1)
    checksum = Checksum()
    whole = b"".join(checksum.add(piece) for piece in WeightsStream(sent))
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert receive(pieces, here) == str(checksum)
    assert len(whole) <= max_weights_bytes(here)
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
    receive(WeightsStream({"w": torch.tensor([1.0, 1.001, -3.0, 0.1])}), here)
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
        receive(WeightsStream(sent), here)
    assert torch.equal(here["w"], torch.ones(4))


def test_torn_and_overlong_streams_and_huge_headers_are_refused() -> None:
    sent = {"w": torch.zeros(4)}
    whole = b"".join(WeightsStream(sent))
    with pytest.raises(BadPayload, match="ended before"):
        receive([whole[:-1]], {"w": torch.ones(4)})
    with pytest.raises(BadPayload, match="more bytes"):
        receive([whole, b"", b"x"], {"w": torch.ones(4)})
    with pytest.raises(BadPayload, match="no safetensors file"):
        receive([(1 << 40).to_bytes(8, "little")], sent)
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}'
    with pytest.raises(BadPayload, match="does not start where"):
        receive([len(header).to_bytes(8, "little") + header], sent)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_heads_never_do_worse_than_be_refused(data: st.DataObject) -> None:
    whole = bytearray(b"".join(WeightsStream({"w": torch.zeros(4), "v": torch.ones(2, 3)})))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 41))] = data.draw(st.integers(0, 255))
    with suppress(BadPayload):
        receive([bytes(whole)], {"w": torch.zeros(4), "v": torch.zeros(2, 3)})
