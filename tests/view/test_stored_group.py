"""Stored groups of any shape: shown as far as they can be, never a crash."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.types import Completion, Group, Problem, to_json
from groupwise.view.cards import group_card, text_page, token_page
from groupwise.view.open_run import to_json as encoded
from groupwise.view.stored_group import Unreadable, stored_group

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
KEYS = ("tokens", "logprobs", "old_logprobs", "old_entropies", "ref_logprobs", "text", "stop")
completions = st.dictionaries(st.sampled_from(KEYS), anything) | anything
groups = st.fixed_dictionaries(
    {},
    optional={
        "problem": st.dictionaries(st.sampled_from(("id", "prompt", "columns")), anything)
        | anything,
        "completions": st.lists(completions, max_size=3) | anything,
        "scores": st.dictionaries(st.sampled_from(("correct", "x")), anything) | anything,
        "rewards": anything,
        "advantages": anything,
    },
)


def no_texts(ids: Any) -> list[str]:
    return ["" for _ in ids]


@settings(deadline=None)
@example({"completions": [{"tokens": [1, 2], "old_logprobs": [-1.0, -1.0]}]})
@given(groups | anything)
def test_any_json_is_a_card_or_a_refusal(data: Any) -> None:
    line = json.dumps(data).encode()
    if not isinstance(data, dict):
        with pytest.raises(Unreadable):
            stored_group(line, 0)
        return
    group = stored_group(line, 0)
    assert encoded(group_card(group)).isascii()
    for answer in group.answers:
        page = token_page(group, answer.index, 0, no_texts)
        assert len(page["texts"]) == page["total"] == len(answer.tokens)
        assert all(len(values) == page["total"] for values in page["measures"].values())
        encoded(page)
        encoded(text_page(group, answer.index, 0))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_card_or_a_refusal(line: bytes) -> None:
    try:
        encoded(group_card(stored_group(line, 0)))
    except Unreadable as error:
        assert "group 0" in str(error)


def test_measures_are_worked_out_from_what_was_stored() -> None:
    completion = Completion(
        (5, 6), (-1.0, -2.0), "eos", "ab", old_logprobs=(-1.0, -1.5), old_entropies=(0.3, 0.6),
        ref_logprobs=(-1.0, -2.5),
    )  # fmt: skip
    group = Group(Problem("p", "q"), (1,), (completion,), {}, (1.0,), ((0.25, 0.75),))
    stored = stored_group(json.dumps(to_json(group)).encode(), 0)
    measures = token_page(stored, 0, 0, no_texts)["measures"]
    assert measures["logprob"] == [-1.0, -2.0] and measures["entropy"] == [0.3, 0.6]
    assert measures["ratio"] == pytest.approx([1.0, 1.6487], abs=1e-4)  # exp(-1.5 + 2)
    assert measures["kl"] == pytest.approx([0.0, 0.36788], abs=1e-4)  # exp(-1) + 1 - 1
    assert stored.answers[0].advantage == 0.5  # given by token: the mean
    assert token_page(stored, 0, 1, no_texts)["measures"]["logprob"] == [-2.0]


def test_a_conversation_is_shown_under_its_roles() -> None:
    turns = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    group = Group(Problem("p", turns), (1,), ())
    stored = stored_group(json.dumps(to_json(group)).encode(), 0)
    assert stored.prompt == "[system]\nBe brief.\n\n[user]\nHi"
