"""What a chain of thought is made of, and bonuses for it: steps, calculations, reasoning words.

The features are counted so that stuffing pays little: steps must be numbered 1, 2, 3, ... and say
something, a calculation or a word counts once however often it is repeated, and a calculation that
is wrong counts against. None of them knows the right answer, so give them less weight than one
that does: a model that is paid for the looks of reasoning alone learns to look as if it reasoned.

Calculations are found around each `=`, cleaned of money signs and thousands separators, and
evaluated exactly by groupwise.answers.expressions. `10/3 = 3.33` is right: it is rounded to the
digits that it shows. All scans are linear in the text, of which so much is read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from groupwise.answers.expressions import ExpressionError, evaluate

MAX_TEXT = 20_000
MAX_CALCULATIONS = 200
MAX_SIDE = 100

_WORDS = """
    because since therefore thus hence so then first second third next finally if means implies
    given let assume suppose need remaining total altogether each check verify substitute
    calculate subtract add multiply divide follows must wait however instead
"""
REASONING_WORDS = frozenset(_WORDS.split())

_MARKER = re.compile(
    r"(?:^|\n)[*_#> \t-]{0,8}([0-9]{1,2})[.):](?![0-9])|\bstep ([0-9]{1,2})\b", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_CHARACTERS = str.maketrans(
    {"×": "*", "·": "*", "∙": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"}
    | dict.fromkeys("$€£", None)
)
_NOTATION = (
    (re.compile(r"\\times|\\cdot"), "*"),
    (re.compile(r"\\div"), "/"),
    (re.compile(r"\\[dt]?frac ?\{([0-9. ]{1,20})\} ?\{([0-9. ]{1,20})\}"), r"((\1)/(\2))"),
    (re.compile(r"\\[$%]"), lambda match: match[0][1:].replace("$", "")),
    (re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<=[0-9)]) ?[xX] ?(?=[0-9(])"), "*"),
)
_ARITHMETIC = frozenset("0123456789+-*/().,% \t")
_DECIMAL = re.compile(r"([0-9]{0,15})\.([0-9]{1,12})(?![0-9.])")
_PERCENT = re.compile(r"([0-9]{1,15}|\([0-9]{1,27}/10{1,12}\)) ?%")
_MIXED = re.compile(r"(?<![0-9/.])([0-9]{1,9}) ([0-9]{1,9}/[0-9]{1,9})")
_OPERATOR = re.compile(r"[0-9)%] ?[-+*/]")
_NUMBER = re.compile(r"-? ?(?:[0-9]{1,15}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})%?")
_CLAUSE = re.compile(r"[.,] ")


@dataclass(frozen=True)
class CotFeatures:
    """CotFeatures(steps=2, right_calculations=3, wrong_calculations=0, reasoning_words=4, words=60)

    `steps` counts those numbered in order; the other three count different ones.
    """

    steps: int
    right_calculations: int
    wrong_calculations: int
    reasoning_words: int
    words: int

    def vector(self) -> tuple[float, ...]:
        """The features as numbers from 0 to 1, for a model that reads them beside the text."""
        most = (10, 10, 10, 10, 500)
        counts = (
            self.steps,
            self.right_calculations,
            self.wrong_calculations,
            self.reasoning_words,
            self.words,
        )
        return tuple(min(count / limit, 1.0) for count, limit in zip(counts, most, strict=True))


def cot_features(text: str) -> CotFeatures:
    """cot_features("Step 1: add, so 2+3=5.\\nStep 2: then 5*2=11.").right_calculations == 1"""
    text = text[:MAX_TEXT]
    words = [word.lower() for word in _WORD.findall(text)]
    verdicts = calculations(text)
    return CotFeatures(
        steps=numbered_steps(text),
        right_calculations=sum(verdicts.values()),
        wrong_calculations=len(verdicts) - sum(verdicts.values()),
        reasoning_words=len(REASONING_WORDS.intersection(words)),
        words=len(words),
    )


def cot_bonus(completion: str) -> float:
    """From -0.3 to 0.6, for reasoning patterns whatever the answer is.

    +0.2 for 2 to 12 numbered steps; +0.1 for each right calculation, up to 0.3; -0.1 for each wrong
    one, down to -0.3; +0.1 for three different reasoning words.
    """
    features = cot_features(completion)
    tenths = 2 * (2 <= features.steps <= 12) + (features.reasoning_words >= 3)
    tenths += min(features.right_calculations, 3) - min(features.wrong_calculations, 3)
    return tenths / 10


def reasoning_quality(completion: str) -> float:
    """From 0 to 1: 0.4 for three numbered steps, 0.4 for two calculations if all are right, 0.2 for
    three different reasoning words; parts of it for parts of that."""
    features = cot_features(completion)
    all_calculations = features.right_calculations + features.wrong_calculations
    share_right = features.right_calculations / all_calculations if all_calculations else 0.0
    return (
        0.4 * min(features.steps, 3) / 3
        + 0.4 * share_right * min(features.right_calculations, 2) / 2
        + 0.2 * min(features.reasoning_words, 3) / 3
    )


def step_clarity(completion: str) -> float:
    """The share of the steps that are clear, from 0 to 1; fewer than two steps count half.

    A step is a line (of a text in one line: a sentence). It is clear when it has 10 to 300
    characters, says something that no step before it said, and holds a number or a reasoning word.
    Lines of tags alone are no steps.
    """
    text = completion[:MAX_TEXT]
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not (line[0] == "<" and line[-1] == ">")]
    if len(lines) == 1:
        lines = [part for part in re.split(r"(?<=[.!?;])\s", lines[0]) if part]
    seen: set[str] = set()
    clear = 0
    for line in lines:
        known = " ".join(_MARKER.sub(" ", line).lower().split())
        fresh, seen = known not in seen, seen | {known}
        words = {word.lower() for word in _WORD.findall(line)}
        substance = bool(REASONING_WORDS & words) or any(c.isdigit() for c in known)
        clear += fresh and substance and 10 <= len(line) <= 300
    return clear / max(len(lines), 2) if lines else 0.0


def numbered_steps(text: str) -> int:
    """How far the steps are numbered in order, from 1: "1. ...", "2) ...", "**Step 3:** ...".

    A number with nothing to say behind it is no step.
    """
    markers = list(_MARKER.finditer(text[:MAX_TEXT]))
    reached = 0
    for position, marker in enumerate(markers):
        after = markers[position + 1].start() if position + 1 < len(markers) else len(text)
        content = text[marker.end() : min(after, marker.end() + 200)]
        if int(marker[1] or marker[2]) == reached + 1 and sum(map(str.isalnum, content)) >= 5:
            reached += 1
    return reached


def calculations(text: str) -> dict[str, bool]:
    """Every different calculation with `=` in the text, and whether it is right.

    calculations("2+3 = 5, so 5 x 2 = 11") == {"2+3=5": True, "5*2=11": False}
    """
    text = text[:MAX_TEXT].translate(_CHARACTERS)
    for pattern, replacement in _NOTATION:
        text = pattern.sub(replacement, text)
    verdicts: dict[str, bool] = {}
    for left, right in _equations(text):
        values = _value(left), _value(right)
        if values[0] is not None and values[1] is not None:
            written = f"{left}={right}".replace(" ", "").replace("\t", "")
            verdicts[written] = _equal(left, right, values[0], values[1])
            if len(verdicts) == MAX_CALCULATIONS:
                break
    return verdicts


def _equations(text: str) -> Iterator[tuple[str, str]]:
    """The two sides of each `=` that has arithmetic on at least one of them."""
    for match in re.finditer("[=≈]", text):
        at = match.start()
        if text[at - 1 : at] in ("<", ">", "!", ":") or text[at + 1 : at + 2] in ("=", ">"):
            continue
        left, right = _left_side(text, at), _right_side(text, at + 1)
        if left and right and (_OPERATOR.search(left) or _OPERATOR.search(right)):
            yield left, right


def _left_side(text: str, end: int) -> str:
    start = end
    while start > max(0, end - MAX_SIDE) and text[start - 1] in _ARITHMETIC:
        start -= 1
    side = _CLAUSE.split(text[start:end])[-1].strip()
    whole = len(side) == len(text[start:end].strip())
    if whole and start and text[start - 1] not in "\n<(:;" and side[:1] in ("+", "-", "*", "/"):
        return ""  # what it adds to stands before it, and is no number
    if side.startswith("- "):
        side = side[2:]  # a bullet
    side = side.lstrip("+*/, \t")
    side = side if re.match(r"\.[0-9]", side) else side.lstrip(". ")
    while side.count(")") > side.count("(") and side.startswith(")"):
        side = side[1:].strip()
    while side.count("(") > side.count(")") and side.startswith("("):
        side = side[1:].strip()
    return side


def _right_side(text: str, start: int) -> str:
    end = start
    while end < min(len(text), start + MAX_SIDE) and text[end] in _ARITHMETIC:
        end += 1
    side = _CLAUSE.split(text[start:end])[0]
    unfinished = side.rstrip()[-1:] in ("+", "-", "*", "/", "(") or side[-1:].isdigit()
    if unfinished and text[end : end + 1].isalpha() and side.endswith(text[start:end][-1:]):
        return ""  # a variable follows: 24/y, 5x
    side = side.strip().rstrip("+-*/(., \t")
    while side.count(")") > side.count("(") and side.endswith(")"):
        side = side[:-1].strip()
    if _value(side) is None:
        number = _NUMBER.match(side)
        side = number[0] if number else ""
    return side


@lru_cache(4096)
def _value(side: str) -> Fraction | None:
    exact = _DECIMAL.sub(lambda m: f"({m[1]}{m[2]}/1{'0' * len(m[2])})", side)
    exact = _MIXED.sub(r"(\1+\2)", exact)
    exact = _PERCENT.sub(r"(\1/100)", exact)
    try:
        return evaluate(exact).value
    except ExpressionError:
        return None


def _equal(left: str, right: str, a: Fraction, b: Fraction) -> bool:
    if a == b:
        return True
    shown = [side for side in (left, right) if _NUMBER.fullmatch(side)]
    digits = [len(side.rstrip("%").partition(".")[2]) for side in shown if "%" not in side]
    return any(count > 0 and abs(a - b) * 2 * 10**count <= 1 for count in digits)
