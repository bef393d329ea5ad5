"""The four rewards of the Hugging Face cookbook's math reasoning recipe.

An answer is asked for as

    <start_working_out> ... <end_working_out>
    <SOLUTION> ... </SOLUTION>

or with four other `tags`, an option of each reward.

Where this deviates: numbers keep their minus sign and their thousands separators, and are compared
exactly (1,000 equals 1000.0); between the two parts stands whitespace and nothing else; two
solutions are no answer, and a solution of several numbers is a wrong one, since the writer has not
decided.
"""

from collections.abc import Sequence
from fractions import Fraction

from groupwise.answers.final import same_answer
from groupwise.answers.quantities import extract_number

TAGS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")


def exact_format(completion: str, tags: Sequence[str] = TAGS) -> float:
    """3.0 for the whole form, each tag once, both parts filled and nothing around; else 0.0."""
    text = completion.strip()
    if any(text.count(tag) != 1 for tag in tags):
        return 0.0
    start, end, opening, closing = tags
    working, _, rest = text.partition(end)
    solution = rest.strip()
    whole = (
        working.startswith(start)
        and working.removeprefix(start).strip()
        and solution.startswith(opening)
        and solution.endswith(closing)
        and solution.removeprefix(opening).removesuffix(closing).strip()
    )
    return 3.0 if whole else 0.0


def approximate_format(completion: str, tags: Sequence[str] = TAGS) -> float:
    """For each of the four tags +0.5 if it appears exactly once, else -0.5: from -2.0 to 2.0."""
    return sum(0.5 if completion.count(tag) == 1 else -0.5 for tag in tags)


def answer(completion: str, answer: str, tags: Sequence[str] = TAGS) -> float:
    """3.0 equal; 1.5 within 10 %; 0.5 within 20 %; otherwise -0.5; 0.0 where no answer was found.

    Distances are shares of the true number. To be within 20 % of 0 is to be 0.
    """
    given = _solution(completion, tags)
    if not given:
        return 0.0
    if same_answer(given, answer):
        return 3.0
    number, truth = extract_number(given), extract_number(answer)
    if number is None or truth is None:
        return -0.5
    distance = abs(number - truth)
    if distance <= abs(truth) / 10:
        return 1.5
    return 0.5 if distance <= abs(truth) * Fraction(1, 5) else -0.5


def number(completion: str, answer: str, tags: Sequence[str] = TAGS) -> float:
    """1.5 if the one number in the solution equals the true one, else 0.0.

    The solution may lack its closing tag, as when the answer was cut off right behind the number.
    """
    given, (opening, closing) = _solution(completion, tags), tags[2:]
    if given is None and completion.count(opening) == 1 and closing not in completion:
        given = completion.partition(opening)[2]
    value, truth = extract_number((given or "").strip()), extract_number(answer)
    return 1.5 if value is not None and value == truth else 0.0


def _solution(text: str, tags: Sequence[str]) -> str | None:
    """What stands in the only solution; None if there is none, or several."""
    opening, closing = tags[2:]
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    content, closed, _ = text.partition(opening)[2].partition(closing)
    return (content.strip() or None) if closed else None
