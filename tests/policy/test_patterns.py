"""Patterns of a tokenizer that take much longer than their text is long, and those of real ones."""

from collections.abc import Sequence
from itertools import chain

import pytest

from groupwise.policy import patterns
from groupwise.policy.patterns import (
    USED_BY_MODELS,
    grows,
    grows_in_a_trial,
    is_simple,
    literals,
    repeats_repeats,
    sequences,
    texts,
    why_slow,
)

LETTERS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
SMALL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REAL = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
    "gpt4": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "gpt4o": rf"[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}]*[{SMALL}]+{ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}]+[{SMALL}]*{ENDINGS}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek digits": r"\p{N}{1,3}",
    "deepseek han": r"[一-龥぀-ゟ゠-ヿ]+",
    "kimi": r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}&&[^\p{{Han}}]]*[{SMALL}&&[^\p{{Han}}]]+"
    rf"{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}&&[^\p{{Han}}]]+[{SMALL}&&[^\p{{Han}}]]*{ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{REST}",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "chameleon": r"([\t\n]|    |  )",
    "clip": r"<\|startoftext\|>|<\|endoftext\|>"
    rf"|{ENDINGS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",
    "falcon": r"[0-9][0-9][0-9]",
    "sentencepiece": " {2,}",
    "blanks": r"\s{2,}|[\n\r\t]",
    "any": "(.)",
}


@pytest.fixture
def in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times what the trial of an ordinary pattern takes."""
    monkeypatch.setattr(patterns, "SECONDS", 1)


@pytest.mark.parametrize("model", REAL)
def test_patterns_of_real_tokenizers_are_let_through(model: str) -> None:
    assert why_slow(REAL[model]) is None


@pytest.mark.parametrize("pattern", sorted(USED_BY_MODELS))
@pytest.mark.usefixtures("in_a_second")
def test_slow_patterns_of_known_models_are_let_through(pattern: str) -> None:
    assert why_slow(pattern) is None
    assert repeats_repeats(pattern) or grows_in_a_trial(pattern), "it need not be in the list"


@pytest.mark.parametrize(
    "pattern",
    [
        "x+y",
        r"\s+\z",
        "a*a*x",  # cubic
        "(?:ab)+c",
        "(?i:foo)+bar",
        r"(?:[^\W\d]#)+x",
        "a.*b",
        "a.*[bc]",
        "a[^d]*[bc]",
        r"https?://.*\.zip",
        r"x(?=.*y)",
        r"(a*)\1b",
        r"(?<=a)b|\w+!",
        r"\p{Khmer}+!",
        r"\x{e01}+\x{e02}",
        r"(?:\p{Lu}\p{Ll})+\d",
        r"(?<name>a+)b\g<name>c",
        "a?" * 30 + "a" * 30,
        rf"[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}]*[{SMALL}]+|\p{{N}}{{1,3}}",  # half of GPT-4o's
    ],
)
@pytest.mark.usefixtures("in_a_second")
def test_patterns_that_grow_faster_than_their_text_are_found(pattern: str) -> None:
    assert why_slow(pattern) == "whose time grows much faster than the text"


@pytest.mark.parametrize("pattern", ["(?:ab)+", r"\p{N}{1,3}"])
def test_a_plain_repetition_repeats_no_repetition(pattern: str) -> None:
    assert not repeats_repeats(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"(a+)+$", r"(a|a)*", r"((\w|\d)x)+", r"(\w+\.?){2,}", r"(\p{L}*){99}", r"(?:[^]]]a{50})*"],
)
def test_patterns_that_repeat_what_repeats_itself_are_found(pattern: str) -> None:
    assert repeats_repeats(pattern)
    assert why_slow(pattern) == "that may take for ever, as it repeats what repeats itself"


def test_characters_and_classes_alone_are_not_tried() -> None:
    assert is_simple(r"[0-9+*(){}]|a|\+|\p{L}|.|[^]]]")
    assert not any(map(is_simple, ("a+", "a?", "a{2}", "(a)", r"\\*", "[a]*")))


def test_a_pattern_is_taken_apart() -> None:
    assert sequences(r"(?:ab)+c|\d") == [["a", "b"], ["(?:ab)", "c"], [r"\d"]]
    assert sequences(r"(?i)a(?#or b)[b)]{2}") == [["a", "[b)]"]]
    assert literals(r"\x41[\x{e01}\n]\p{Lu}") == "Aก[\n]"
    made = [unit for unit, _ in texts("(?:a#)+[z]", lambda part, c: part in (c, f"[{c}]"))]
    assert {"a#", "a#z", "#", "z"} <= set(made)


def test_a_pattern_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns.sys, "executable", "/nowhere")
    pattern = " ?once+"
    with pytest.raises(OSError):
        why_slow(pattern)
    monkeypatch.undo()
    assert why_slow(pattern) is None
    monkeypatch.setattr(patterns.sys, "executable", "/nowhere")
    assert why_slow(pattern) is None


def test_searches_that_take_longer_for_a_moment_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a busy machine: 20 ms three times in a row, where 3 ms are right."""
    taken = [0.003, 0.02, *[0.0008] * 5, *[0.02] * 3, *[0.003] * 5, *[0.012] * 3]
    monkeypatch.setattr(patterns, "time", Readings([*taken, *[0.0] * 10_000]))
    assert not grows(r"\s+$"), "a pattern that does grow, by this clock, does not"


def test_searches_that_take_longer_and_longer_count(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0.02, *[0.0013] * 5, *[0.02] * 3, *[0.02] * 5, *[0.32] * 3]
    monkeypatch.setattr(patterns, "time", Readings(taken))
    assert grows("a+"), "a pattern that does not grow, by this clock, does"


def test_computing_that_is_counted_in_steps_of_4_ms_makes_nothing_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that counts at each tick says 0 of the short searches and 12 ms of the long ones."""
    computed = [0.012, *[0.0] * 5, *[0.012] * 3] * 1000
    monkeypatch.setattr(patterns, "time", Readings([0.003] * len(computed), computed))
    assert not grows("[0-9]{1,2}|[+]")


class Readings:
    """Clocks by which searches take and compute so many seconds, one after the other."""

    def __init__(self, taken: Sequence[float], computed: Sequence[float] = ()) -> None:
        self.perf_counter = chain.from_iterable((0.0, each) for each in taken).__next__
        self.process_time = chain.from_iterable((0.0, each) for each in computed or taken).__next__
