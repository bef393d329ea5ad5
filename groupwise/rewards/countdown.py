"""Countdown's judge, and nanoAhaMoment's and GRPO-Zero's rewards, on `numbers` and `target`.

Both rewards ask for `<think>…</think>` and `<answer>…</answer>` with an expression in it. They
differ in what a broken form is worth. Where this deviates from both: expressions are evaluated by a
parser and never by `eval`, whitespace between the two parts is free, and tags that are repeated
count as absent. Values are exact, so an expression that only comes close is wrong.
"""

from groupwise.answers.expressions import ExpressionError, evaluate
from groupwise.answers.tags import tag_content, think_answer_format

_ARITHMETIC = frozenset("0123456789+-*/(). \t\n")


def nano_format(completion: str) -> float:
    """nanoAhaMoment: 0.0 for another form, 0.5 if the answer holds other characters than those of
    arithmetic (or none), 1.0 otherwise."""
    if not think_answer_format(completion):
        return 0.0
    content = (tag_content(completion, "answer") or "").strip()
    return 1.0 if content and set(content) <= _ARITHMETIC else 0.5


def zero_format(completion: str) -> float:
    """GRPO-Zero: 1.0 for the whole form; else 0.1 for a `think` pair plus 0.5 for an `answer` pair.

    GRPO-Zero's own weight for it is 0.1.
    """
    if think_answer_format(completion):
        return 1.0
    think = tag_content(completion, "think") is not None
    answer = tag_content(completion, "answer") is not None
    return (think + 5 * answer) / 10


def equation(completion: str, numbers: list[int], target: int) -> float:
    """1.0 if the answer's expression uses each number exactly once and gives the target, else 0.0.

    Of both systems: the form around the only `<answer>` pair does not matter here.
    """
    return float(_reaches(tag_content(completion, "answer"), numbers, target))


def correct(completion: str, numbers: list[int], target: int) -> bool:
    """Whether the answer's expression has the target's value and uses each number exactly once."""
    return _reaches(extract(completion), numbers, target)


def extract(completion: str) -> str | None:
    """The expression in the only `<answer>` pair that ends the text, without spaces.

    None where it is not an expression, or where it has no value.
    """
    content = tag_content(completion, "answer")
    if content is None or not completion.rstrip().endswith("</answer>"):
        return None
    try:
        evaluate(content)
    except ExpressionError:
        return None
    return "".join(content.split())


def _reaches(expression: str | None, numbers: list[int], target: int) -> bool:
    try:
        evaluated = evaluate(expression or "")
    except ExpressionError:
        return False
    return evaluated.value == target and sorted(evaluated.numbers) == sorted(numbers)
