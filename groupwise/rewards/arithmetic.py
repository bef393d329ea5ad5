"""The judge of the arithmetic task.

An answer is right when the text ends with its only `<answer>` pair and that holds the exact integer
and nothing else: no words, no unit, no separator.
"""

from groupwise.answers.tags import tag_content

MAX_ANSWER_CHARACTERS = 80
"""The largest settings need 54 digits; longer text is not worth parsing."""


def correct(completion: str, answer: str) -> bool:
    """Whether the text ends with the exact integer in its only `<answer>` pair."""
    return extract(completion) == answer


def extract(completion: str) -> str | None:
    """The integer in the only `<answer>` pair, if that ends the text: " 055 " gives "55"."""
    content = tag_content(completion, "answer")
    if content is None or not completion.rstrip().endswith("</answer>"):
        return None
    content = content.strip()
    digits = content.removeprefix("-") if content.startswith("-") else content.removeprefix("+")
    if len(content) > MAX_ANSWER_CHARACTERS or not (digits.isascii() and digits.isdigit()):
        return None
    return str(int(content))
