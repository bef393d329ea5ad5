"""What a model writes is read or explained; it never breaks anything."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.environments.calls import MOST_CALLS, as_message, parse_hermes


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_calls_are_read_and_taken_out_of_the_text() -> None:
    turn = parse_hermes(f"Adding. {call('add', a=3, b=4)}{call('neg', a=7)}", "eos")
    assert turn.text == "Adding."
    assert [(c.name, c.arguments, c.error) for c in turn.calls] == [
        ("add", {"a": 3, "b": 4}, ""),
        ("neg", {"a": 7}, ""),
    ]
    assert len({c.id for c in turn.calls}) == 2
    assert as_message(turn)["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": {"a": 3, "b": 4},
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"name": "add", "arguments": {"a": 3}', "not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3}', 'no "name"'),
        ('{"name": "add", "arguments": [1]}', "must be a JSON object of names"),
        ('{"name": "add", "arguments": "{"}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_with_it(body: str, said: str) -> None:
    (made,) = parse_hermes(f"<tool_call>{body}</tool_call>", "eos").calls
    assert said in made.error


def test_a_call_that_was_cut_off_is_malformed() -> None:
    (made,) = parse_hermes('<tool_call>{"name": "add", "arguments": {}}', "length").calls
    assert "</tool_call>" in made.error


def test_what_cannot_be_read_stays_in_the_record() -> None:
    turn = parse_hermes("<tool_call>oops</tool_call>", "eos")
    assert turn.text == "<tool_call>oops</tool_call>"
    assert "tool_calls" not in as_message(turn)


def test_calls_that_are_only_thought_of_are_not_made() -> None:
    turn = parse_hermes(f"<think>perhaps {call('add', a=1)}</think>No.", "eos")
    assert not turn.calls and turn.text.endswith("No.")


def test_arguments_written_as_text_are_read() -> None:
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 3}"}</tool_call>'
    assert parse_hermes(text, "eos").calls[0].arguments == {"a": 3}


def test_a_flood_of_calls_is_bounded() -> None:
    assert len(parse_hermes(call("add") * 1000, "eos").calls) == MOST_CALLS


@given(st.text(st.sampled_from('<tool_call>{}"name:add,/\\n[] '), max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for made in parse_hermes(f"<tool_call>{text}", "eos").calls:
        assert made.error or made.name
