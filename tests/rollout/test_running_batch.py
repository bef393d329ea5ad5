"""The running batch against a plain loop that looks at one token after another."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rollout.native.running_batch import RunningAnswer, RunningBatch
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Sampling


class Letters:
    """A tokenizer whose token n is the letter n."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(97 + token) for token in tokens)


def running_batch(rows: int = 4) -> RunningBatch:
    return RunningBatch(rows, 8, (0, 7))


def answer(
    prompt_len: int, key: int, stop: tuple[str, ...] = (), max_tokens: int = 10, call: Any = None
) -> RunningAnswer:
    stops = StopStrings(stop, Letters())
    return RunningAnswer(call, 0, np.full(prompt_len, 9), key, Sampling(0), max_tokens, stops)


def append(batch: RunningBatch, tokens: list[list[int]], first: int = 0) -> dict[int, Any]:
    drawn = np.array(tokens)
    return batch.append(np.arange(first, batch.size), drawn, -drawn.astype(np.float32))


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
    batch = running_batch()
    batch.add(answer(5, 1, stop, max_tokens), [])
    tokens: list[int] = []
    for burst in bursts:
        tokens, reason = plain(tokens, burst, stop, max_tokens)
        ends = append(batch, [burst])
        assert batch.tokens_of(0).tolist() == tokens
        assert batch.logprobs_of(0).tolist() == [-float(token) for token in tokens]
        assert batch.context_of(0).tolist() == [9] * 5 + tokens[:-1]
        assert ends.get(0) == reason
        assert batch.kv_lens.tolist() == [5 + len(tokens) - 1]
        assert batch.last_tokens.tolist() == [tokens[-1]]
        if reason is not None:
            break


def test_the_last_answers_move_into_the_free_rows_with_their_pages() -> None:
    batch = running_batch()
    for n in range(4):
        batch.add(answer(n, 2**64 - 1 - n, call=n), [n + 1] * (n + 1))
    append(batch, [[1], [2], [3], [4]])
    batch.remove({0, 2})
    assert [a.call for a in batch.answers] == [3, 1]
    assert batch.last_tokens.tolist() == [4, 2]
    assert batch.keys[:2].tolist() == [2**64 - 4, 2**64 - 2]
    assert batch.pages == [[4] * 4, [2] * 2] and batch.page_counts[:2].tolist() == [4, 2]
    assert batch.table[:2, :4].tolist() == [[4] * 4, [2, 2, 0, 0]]
    batch.add(answer(1, 5), [7])
    assert batch.table[2, :4].tolist() == [7, 0, 0, 0]  # nothing is left of whoever was there
    batch.remove({0, 1, 2})
    assert batch.size == 0


@pytest.mark.parametrize("first", [0, 1])
def test_new_answers_begin_behind_the_others(first: int) -> None:
    batch = running_batch()
    for n in range(first + 2):
        batch.add(answer(1, n), [])
        if n < first:
            append(batch, [[1]])
    assert append(batch, [[7], [2]], first) == {first: "eos"}
    assert batch.output_lens[: first + 2].tolist() == [1] * (first + 2)


def test_rows_are_grouped_by_how_their_tokens_are_drawn() -> None:
    batch = running_batch()
    for n, temperature in enumerate((1.0, 0.5, 1.0)):
        one = answer(1, n)
        one.sampling = Sampling(0, temperature)
        batch.add(one, [])
    groups = {sampling.temperature: rows.tolist() for sampling, rows in batch.by_sampling()}
    assert groups == {1.0: [0, 2], 0.5: [1]}
    batch.remove({0})
    groups = {sampling.temperature: rows.tolist() for sampling, rows in batch.by_sampling()}
    assert groups == {1.0: [0], 0.5: [1]}
