"""Differences of weights: any sequence of them gives the weights to the bit, and one that is
damaged, or meant for other weights, changes nothing."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from groupwise.remote.published_weights import PublishedWeights
from groupwise.remote.sparse_weights import (
    Change,
    DifferenceRefused,
    WeightsDifference,
    change_hash,
    encode_difference,
    tensor_hash,
    to_gaps,
    to_indices,
    weights_hash,
)

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
shapes = st.sampled_from([(0,), (1,), (7,), (3, 5), (2, 300), (700, 3)])


def some_weights(data: st.DataObject) -> dict[str, Tensor]:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    dtype = st.sampled_from(DTYPES)
    return {name: torch.randn(data.draw(shapes)).to(data.draw(dtype)) for name in names}


def copies(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in weights.items()}


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    """To the bit: not a number is the same as itself, and 0 is another than -0."""
    if ours.keys() != theirs.keys():
        return False
    pairs = [(ours[name].view(-1), theirs[name].view(-1)) for name in ours]
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def update(data: st.DataObject, weights: Mapping[str, Tensor]) -> None:
    """Some values become others, among them those that compare in odd ways."""
    odd = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -2.0])
    for weight in weights.values():
        flat = weight.view(-1)
        for _ in range(data.draw(st.integers(0, 4)) if len(flat) else 0):
            flat[data.draw(st.integers(0, len(flat) - 1))] = data.draw(odd)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_updates_arrives_to_the_bit(data: st.DataObject) -> None:
    trained = some_weights(data)
    published, there = PublishedWeights(), copies(trained)
    published.update(3, trained.items())
    assert published.difference is None
    for version in range(4, 4 + data.draw(st.integers(1, 5))):
        update(data, trained)
        published.update(version, trained.items())
        assert same(published.weights, trained) and published.base == version - 1
        if published.difference is None:  # they were too many: the whole is sent
            there = copies(published.weights)
            continue
        difference = WeightsDifference(published.difference, there)
        assert {name for name, _ in difference} == trained.keys()
        assert same(there, trained)
        assert difference.checksum() == published.checksum == str(weights_hash(trained))


def difference_of(weights: dict[str, Tensor], *indices: int) -> tuple[bytes, PublishedWeights]:
    published = PublishedWeights()
    published.update(1, weights.items())
    changed = copies(weights)
    for index in indices:
        changed["w"].view(-1)[index] += 1
    published.update(2, changed.items())
    assert published.difference is not None
    return published.difference, published


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_damaged_on_its_way_changes_no_weight(data: st.DataObject) -> None:
    weights = {"w": torch.arange(900).bfloat16(), "v": torch.ones(40).half()}
    body = bytearray(difference_of(weights, 3, 4, 500, 899)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    body = bytes(body)[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    before = copies(weights)
    try:
        found = WeightsDifference(bytes(body), weights)
    except DifferenceRefused:
        assert same(weights, before)
    else:  # the damage was to nothing that counts, such as the number of the version
        list(found)
        assert same(weights, difference_of(before, 3, 4, 500, 899)[1].weights)


@given(st.integers(0, 899), st.sampled_from([0.5, -0.0, float("nan")]))
@settings(max_examples=40, deadline=None)
def test_what_is_meant_for_other_weights_changes_none(index: int, value: float) -> None:
    body, _ = difference_of({"w": torch.arange(1, 901).bfloat16()}, 3)
    other = {"w": torch.arange(1, 901).bfloat16()}
    other["w"][index] = value
    before = copies(other)
    if not same(other, {"w": torch.arange(1, 901).bfloat16()}):
        with pytest.raises(DifferenceRefused, match="not the base of"):
            WeightsDifference(body, other)
    assert same(other, before)


@pytest.mark.parametrize(
    "other",
    [{"w": torch.zeros(2).bfloat16()}, {"v": torch.zeros(900).bfloat16()}, {}],
    ids=["another shape", "another name", "nothing"],
)
def test_other_models_refuse_it(other: dict[str, Tensor]) -> None:
    body, _ = difference_of({"w": torch.arange(900).bfloat16()}, 3, 800)
    with pytest.raises(DifferenceRefused, match="not a difference of these weights"):
        WeightsDifference(body, other)


def test_values_that_were_swapped_are_noticed() -> None:
    """A sum that did not tell indices apart would be the same."""
    weights = {"w": torch.zeros(2000, dtype=torch.bfloat16)}
    values = np.array([16256, 16384], dtype=np.int16)
    right, wrong = (Change(np.array([4, 1500]), v) for v in (values, values[::-1].copy()))
    result = weights_hash(weights) + change_hash("w", right, np.zeros(2, np.int16))
    body = encode_difference({"w": wrong}, 0, weights_hash(weights), result % 2**64)
    with pytest.raises(DifferenceRefused, match="damaged"):
        WeightsDifference(body, weights)
    assert not weights["w"].any()


@given(st.lists(st.integers(0, 5000), unique=True).map(sorted))
def test_gaps_are_the_places(indices: list[int]) -> None:
    found = to_indices(to_gaps(np.array(indices, dtype=np.int64)))
    assert found.tolist() == indices


def test_gaps_are_bytes_also_where_they_are_long() -> None:
    assert to_gaps(np.array([0, 3, 900])).tolist() == [0, 2, 255, 255, 255, 131]


@pytest.mark.parametrize("size", [1, 2**18 - 1, 2**18, 2**18 + 7])
def test_the_hash_follows_from_what_changed(size: int) -> None:
    weight = torch.arange(1, size + 1).half()
    changed = weight.clone()
    changed[-1] += 1
    indices = np.array([size - 1])
    change = Change(indices, changed.view(torch.int16).numpy()[indices])
    by = change_hash("w", change, weight.view(torch.int16).numpy()[indices])
    assert (tensor_hash("w", weight) + by) % 2**64 == tensor_hash("w", changed)
    assert tensor_hash("w", weight) != tensor_hash("v", weight)


def test_two_percent_of_changes_are_a_few_percent_of_the_bytes() -> None:
    torch.manual_seed(0)
    weights = {"w": torch.randn(1000, 300).bfloat16()}
    indices = torch.randperm(300_000)[:6000].tolist()
    body, published = difference_of(weights, *indices)
    assert len(body) < 0.035 * weights["w"].nbytes
    rows = load(body)
    assert len(rows["w.values"]) == int((published.weights["w"] != weights["w"]).sum())


def test_a_difference_that_is_nearly_the_whole_is_not_made() -> None:
    published, weights = PublishedWeights(), {"w": torch.randn(1000), "v": torch.ones(1000)}
    published.update(0, weights.items())
    weights["w"] = weights["w"] * 1.01
    published.update(1, weights.items())
    assert published.difference is None and same(published.weights, weights)
    weights["v"][7] = 3
    published.update(2, weights.items())
    assert published.difference is not None and published.checksum == str(weights_hash(weights))


def test_weights_are_read_once_and_kept_in_the_precision_of_the_servers() -> None:
    published = PublishedWeights(torch.bfloat16)
    given = iter([("w", torch.tensor([1.0, 1.001]))])
    published.update(0, given)
    assert next(given, None) is None
    assert torch.equal(published.weights["w"], torch.tensor([1.0, 1.0]).bfloat16())
    published.update(1, iter([("w", torch.tensor([1.0, 1.002]))]))
    assert published.difference is not None and not load(published.difference)


def test_another_model_begins_anew() -> None:
    published = PublishedWeights()
    published.update(0, [("w", torch.ones(3)), ("v", torch.ones(3))])
    published.update(1, [("w", torch.ones(4))])
    assert published.difference is None and published.weights.keys() == {"w"}
    published.update(2, [("w", torch.ones(4))])
    assert published.difference is not None
