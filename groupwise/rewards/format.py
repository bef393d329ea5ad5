"""Rewards for the form of an answer. They read tags with linear scans and use no patterns."""

from collections.abc import Sequence

from groupwise.answers.tags import think_answer_format


def think_answer(completion: str) -> float:
    """1.0 for `<think>…</think><answer>…</answer>` and nothing else, otherwise 0.0."""
    return float(think_answer_format(completion))


def tags(completion: str, names: Sequence[str] = ("think", "answer")) -> float:
    """The share of the wanted tags, opening and closing, that appear exactly once and in order.

    tags("<think>a</think>5", names=["think", "answer"]) == 0.5

    A tag counts when it comes after all that counted before it, so stuffing an answer with tags or
    turning their order around never scores more than writing each once in its place.
    """
    wanted = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    if not wanted:
        return 0.0
    reached, counted = 0, 0
    for tag in wanted:
        position = completion.find(tag)
        if position >= reached and completion.find(tag, position + 1) < 0:
            counted += 1
            reached = position + len(tag)
    return counted / len(wanted)
