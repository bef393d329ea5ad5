"""The two rewards of The LM Book's GRPO from scratch, summed with weight 1 each.

An answer is asked for as `<reasoning>…</reasoning><answer>…</answer>`. Where this deviates: the
answer counts in its only pair of tags, not in the last of several; a tag counts when it appears
once and in its place, so that stuffing an answer with tags gains nothing; numbers are compared
exactly, with their signs and separators.
"""

from collections.abc import Sequence

from groupwise.answers.quantities import extract_number
from groupwise.answers.tags import tag_content
from groupwise.rewards.format import tags

TAGS = ("reasoning", "answer")


def answer(completion: str, answer: str) -> float:
    """2.0 if the answer is the true one character for character, 1.5 if only its number is, else 0.

    "The answer is 42." in the tags earns 1.5 where the truth is "42".
    """
    given = (tag_content(completion, "answer") or "").strip()
    if not given:
        return 0.0
    if given == answer.strip():
        return 2.0
    number = extract_number(given)
    return 1.5 if number is not None and number == extract_number(answer) else 0.0


def form(completion: str, names: Sequence[str] = TAGS) -> float:
    """0.2 for each of the four tags that appears once and in order: at most 0.8."""
    return 0.2 * round(4 * tags(completion, names))
