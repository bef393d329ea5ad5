"""The running batch against a plain loop that looks at one token after another."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.stopping import StopStrings


class Letters:
    """A tokenizer whose token n is the letter n."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(97 + token) for token in tokens)


def running_batch(stop: tuple[str, ...] = (), max_tokens: int = 10, slots: int = 4) -> RunningBatch:
    batch = RunningBatch(max_tokens, 8, (0, 7), StopStrings(stop, Letters()))
    batch.allocate(slots)
    return batch


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
def test_appending_is_looking_at_one_token_after_another(
    bursts: list[list[int]], stop: tuple[str, ...], max_tokens: int
) -> None:
    batch = running_batch(stop, max_tokens)
    batch.add(0, 0, prompt_len=5, key=1)
    tokens: list[int] = []
    for burst in bursts:
        tokens, reason = plain(tokens, burst, stop, max_tokens)
        logprobs = -np.array([burst], dtype=np.float32)
        ends = batch.append(np.array([burst]), logprobs)
        assert batch.tokens_of(0) == tokens
        assert batch.logprobs_of(0) == [-float(token) for token in tokens]
        assert ends.get(0) == reason
        assert batch.kv_lens.tolist() == [5 + len(tokens) - 1]
        assert batch.last_tokens.tolist() == [tokens[-1]]
        if reason is not None:
            break


def test_the_last_answers_move_into_the_free_slots() -> None:
    batch = running_batch()
    for n in range(4):
        batch.add(n, 0, prompt_len=n, key=2**64 - 1 - n)
    batch.append(np.array([[1], [2], [3], [4]]), np.zeros((4, 1), np.float32))
    assert batch.remove({0, 2}) == ([3], [0])
    assert batch.owners == [(3, 0), (1, 0)]
    assert batch.last_tokens.tolist() == [4, 2]
    assert batch.keys[:2].tolist() == [2**64 - 4, 2**64 - 2]
    assert batch.remove({0, 1}) == ([], []) and batch.size == 0


@pytest.mark.parametrize("first", [0, 1])
def test_new_answers_begin_behind_the_others(first: int) -> None:
    batch = running_batch()
    for n in range(first + 2):
        batch.add(n, 0, prompt_len=1, key=n)
        if n < first:
            batch.append(np.array([[1]]), np.zeros((1, 1), np.float32))
    ends = batch.append(np.array([[7], [2]]), np.zeros((2, 1), np.float32), first)
    assert ends == {first: "eos"}
    assert batch.output_lens[: first + 2].tolist() == [1] * (first + 2)
