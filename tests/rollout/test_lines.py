"""Lines against a plain loop that looks at one token after another."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rollout.native.lines import Lines
from groupwise.rollout.stopping import StopStrings


class Letters:
    """A tokenizer whose token n is the letter n."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(97 + token) for token in tokens)


def lines_of(stop: tuple[str, ...] = (), max_tokens: int = 10, slots: int = 4) -> Lines:
    lines = Lines(max_tokens, 8, (0, 7), StopStrings(stop, Letters()))
    lines.make(slots)
    return lines


def plain(
    before: list[int], drawn: list[int], stop: tuple[str, ...], max_tokens: int
) -> tuple[list[int], str | None]:
    tokens = list(before)
    for token in drawn:
        tokens.append(token)
        if token in (0, 7):
            return tokens, "eos"
        text = Letters().decode(tokens)
        if any(text.endswith(string) for string in stop):
            return tokens, "stop"
        if len(tokens) >= max_tokens:
            return tokens, "length"
    return tokens, None


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3), min_size=2, max_size=6),
    st.sampled_from([(), ("bc",), ("d", "cbc")]),
    st.integers(2, 12),
)
def test_extending_is_looking_at_one_token_after_another(
    bursts: list[list[int]], stop: tuple[str, ...], max_tokens: int
) -> None:
    lines = lines_of(stop, max_tokens)
    lines.add(0, 0, prompt=5, key=1)
    tokens: list[int] = []
    for burst in bursts:
        tokens, reason = plain(tokens, burst, stop, max_tokens)
        logprobs = -np.array([burst], dtype=np.float32)
        ends = lines.extend(np.array([burst]), logprobs)
        assert lines.tokens_of(0) == tokens
        assert lines.logprobs_of(0) == [-float(token) for token in tokens]
        assert ends.get(0) == reason
        assert lines.fill.tolist() == [5 + len(tokens) - 1]
        assert lines.newest.tolist() == [tokens[-1]]
        if reason is not None:
            break


def test_the_last_lines_move_into_the_gaps() -> None:
    lines = lines_of()
    for n in range(4):
        lines.add(n, 0, prompt=n, key=2**64 - 1 - n)
    lines.extend(np.array([[1], [2], [3], [4]]), np.zeros((4, 1), np.float32))
    assert lines.remove({0, 2}) == ([3], [0])
    assert lines.owner == [(3, 0), (1, 0)]
    assert lines.newest.tolist() == [4, 2]
    assert lines.keys[:2].tolist() == [2**64 - 4, 2**64 - 2]
    assert lines.remove({0, 1}) == ([], []) and lines.active == 0


@pytest.mark.parametrize("first", [0, 1])
def test_new_answers_begin_behind_the_others(first: int) -> None:
    lines = lines_of()
    for n in range(first + 2):
        lines.add(n, 0, prompt=1, key=n)
        if n < first:
            lines.extend(np.array([[1]]), np.zeros((1, 1), np.float32))
    ends = lines.extend(np.array([[7], [2]]), np.zeros((2, 1), np.float32), first)
    assert ends == {first: "eos"}
    assert lines.count[: first + 2].tolist() == [1] * (first + 2)
