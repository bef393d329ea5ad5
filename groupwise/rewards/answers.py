"""Where the answer stands in a completion, and whether it is the right one.

Numbers are compared exactly, as fractions: 0.5 = 1/2 = .50, and 0.333 is not 1/3. Deviations that
one might not expect:

- 50% equals 50 and also 0.5 (datasets write all three), though 50 does not equal 0.5.
- Units and words around a number are ignored unless both sides have one and they contradict.
- If the truth is a number, the answer must be a number too: `23+48` is not an answer to itself.
- Dates, times and ratios are compared as text: 4:6 is not 2:3, and 2024-05-17 subtracts nothing.
- What is neither number nor equal text goes to math-verify, if it looks like mathematics and is
  harmless: short, no towers of powers, nothing that would be expanded for minutes.

Model output is hostile: every scan is linear, and what is compared is at most 1000 characters.
"""

import logging
import re
import threading
from functools import cache
from typing import Any

from groupwise.rewards.notation import LIMIT, after_thinking, ascii_digits, plain
from groupwise.rewards.prose import concluded, is_hypothetical
from groupwise.rewards.quantities import (
    extract_number,
    is_date,
    is_rounded,
    read_quantity,
    same_quantity,
    with_decimal_point,
)
from groupwise.rewards.tags import tag_content

__all__ = [
    "boxed_answer",
    "boxed_format",
    "canonical_answer",
    "correct",
    "extract_number",
    "final_answer",
    "same_answer",
]

SHORT = 40
"""A text of no more characters is the answer as a whole."""
TAIL = 4000
"""Without a mark that says where it is, the answer is looked for in so many last characters."""

_MATH_SECONDS = 2
_SAYS = re.compile(
    r"\banswer(?: (?:is|are|(?:must|should|would|will) be)\b(?!n't)|:| ="
    r"| (?=(?:[a-z]{2,6}n't|cannot|[a-z]{3,6} not)\b))(?: ?:)? ?",
    re.IGNORECASE,
)
_JSON = re.compile(
    r"[\"'](?:final[_ ]?)?(?:answer|choice|option|result|solution)[\"']\s{0,4}:\s{0,4}"
    r"(?:\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'|(-?[0-9][0-9.,eE+/-]{0,40}))",
    re.IGNORECASE,
)
_HOW_SURE = re.compile(
    r"[(,;](?:[^(),;\n.]|\.(?=[0-9])){0,40}\b(?<!not )(?:sure|confiden|certain)"
    r"[^()\n]{0,30}\)?[.\s]*$"
)
_NOT_MEANT = re.compile(  # what somebody else would answer, or the wrong way
    r"\b(?:(?:might|may|could|would|some|people|many|others?|someone) (?:\w{1,12} ){0,2}"
    r"(?:say|think|answer|guess|claim|believe|assume|argue)s?|tempt(?:ed|ing)|wrong|incorrect|naive)"
    r"\b[^.!?\n]{0,40}$",
    re.IGNORECASE,
)
_UNDER_CONDITION = re.compile(r"[^.!?\n]{0,60}\bif\b")
_EITHER_BOX = re.compile(r"\\boxed\{[^{}]{0,60}\}\$? (?:or|oder|ou) \$?\\boxed")
_RETRACTED = re.compile(r"\b(?:edit|correction|sorry|misread|wait|actually)\b.*[0-9]", re.I | re.S)
_DENIED_NEXT = re.compile(r"[\s\"']*(?:this|that) is (?:incorrect|wrong)\b", re.IGNORECASE)
_APPROXIMATELY = re.compile(r" ?(?:≈|\\approx) ?")
_BOLD_END = re.compile(r"(?<=[0-9%.])\*\*(?![0-9(])")
_MORE_THAN_WORDS = re.compile(r"[\\\n]|[0-9],[0-9]")
_NUMBER = re.compile(r"[0-9]+(?:[.,/][0-9]+)*")
_FORMULA_SIGN = re.compile(r"[\\=^/]")
_SENTENCE_END = re.compile(r"\n|[.!?](?:\s|$)")
_CHOICE = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|choice|answer)(?: is|:)? ?)?"
    r"[(\[{\"']?([A-J])(?:[)\]}\"'][.:]?|[.:]| ?-|)(?:(?<=[)\].:-])\s(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_ANOTHER_CHOICE = re.compile(r"\bor\b|\band\b|\(?\b[A-Ja-j]\)|^[A-J]\b")
_BARE_BOX = re.compile(r"\\boxed ([0-9]{1,20}|[A-Za-z](?![A-Za-z]))")
_RATIO = re.compile(r"[0-9] ?: ?[0-9]")
_ROOT = re.compile(r"√ ?\(?([0-9]+|[a-z])\)?")
_MATHEMATICAL = re.compile(r"[0-9\\^+*/=<>(\[{√π∞]")
_DANGEROUS = re.compile(
    r"[0-9]{16}"  # a number that could be an exponent, or a factorial
    r"|[0-9] ?[eE][+-]?[0-9]{3}"
    r"|[)\]}|] ?(?:\^|\*\*) ?\{? ?[+-]? ?(?:[0-9]{2}|9)"  # a sum to a high power is expanded
    r"|(?:\^|\*\*) ?\{? ?[+-]? ?[0-9]{4}"
    r"|(?:\^|\*\*)[^,+\-=]{0,20}(?:\^|\*\*)"  # a tower
    r"|[0-9]{3} ?!|[)\]}!] ?!"
    r"|\\(?:int|iint|oint|sum|prod|lim|binom|dbinom|tbinom|bigcup|bigcap)(?![a-z])"
)


def correct(completion: str, answer: Any) -> bool:
    """Whether the completion's final answer is `answer` (GSM8K's "... #### 42" counts as 42)."""
    given = final_answer(completion)
    truth = str(answer)
    if "####" in truth:
        truth = truth.rpartition("####")[2]
    return given is not None and same_answer(given, truth)


def final_answer(text: str) -> str | None:
    """The answer that a text ends on, as it is written there.

    In `<answer>` tags, else the last \\boxed{}, else after the last ####, else in JSON, else after
    "the answer is", else the formula that the text ends on, else the number that its last sentences
    conclude with (prose.py). Two answers in tags are none: the writer has not decided on one.
    """
    text = ascii_digits(after_thinking(text))
    if "<answer>" in text and "</answer>" in text:
        content = (tag_content(text, "answer") or "").strip()
        return (boxed_answer(content) or content).strip() or None
    boxed = boxed_answer(text)
    if boxed is not None and _EITHER_BOX.search(text[-TAIL:]):
        return None
    if boxed is not None:
        return boxed.strip() or None
    tail = text[-TAIL:]
    said = _after_hashes(text) or in_json(tail) or _after_saying_so(tail)
    return said or _last_formula(tail) or _in_prose(tail)


def same_answer(given: str, truth: str) -> bool:
    """Whether two short texts state the same answer, as the module's docstring defines it."""
    given, truth = _unboxed(given).strip(), _unboxed(truth).strip()
    if not given or not truth or len(given) > LIMIT or len(truth) > LIMIT:
        return False
    exactly, _, roughly = _APPROXIMATELY.sub("≈", given).partition("≈")
    if is_rounded(exactly, roughly):  # 1/6 ≈ 0.167
        return same_answer(exactly, truth) or same_answer(roughly, truth)
    right, ours = read_quantity(truth), read_quantity(given)
    if right is not None and ours is None:
        ours = read_quantity(with_decimal_point(given))
    if right is not None and ours is not None:
        return same_quantity(ours, right)
    if _normal(given) == _normal(truth) or _same_choice(given, truth):
        return True
    return right is None and _same_mathematics(given, truth)


def canonical_answer(text: str) -> str | None:
    """The final answer in a form that equal answers share, for voting; None where there is none."""
    answer = final_answer(text)
    if answer is None or len(answer) > LIMIT:
        return None
    number = extract_number(answer)
    return str(number) if number is not None else _normal(answer) or None


def boxed_answer(text: str) -> str | None:
    """What the last \\boxed{...} holds, braces within it balanced. None if it never closes."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        bare = list(_BARE_BOX.finditer(text[-TAIL:]))
        return bare[-1][1] if bare else None
    start = text.index("{", start) + 1
    depth = 1
    for position in range(start, min(start + LIMIT, len(text))):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _unboxed(text: str) -> str:
    boxed = boxed_answer(text) if text.count("\\boxed") == 1 else None
    return text if boxed is None else boxed


def boxed_format(completion: str) -> bool:
    """Whether the text holds exactly one \\boxed{} and there is something in it."""
    return completion.count("\\boxed") == 1 and bool((boxed_answer(completion) or "").strip())


def _after_hashes(text: str) -> str | None:
    """The rest of the last `####` line. A heading of that level (`#### Step 2`) is no answer."""
    before, marker, rest = text.rpartition("####")
    if not marker or before.endswith("#"):
        return None
    line, _, below = rest[: LIMIT + 1].partition("\n")
    line = line.strip()
    heading = line[:1].isalpha() and (below.strip() or len(line) > 40)
    return None if heading or not line else line


def _after_saying_so(text: str) -> str | None:
    matches = [match for match in _SAYS.finditer(text) if not _is_not_meant(text, match)]
    if not matches:
        return None
    rest = _BOLD_END.sub("", text[matches[-1].end() :].lstrip(" *:\n"))
    end = _SENTENCE_END.search(rest)
    if end and (_RETRACTED.search(rest, end.end()) or _DENIED_NEXT.match(rest, end.end())):
        return None
    return (rest[: end.start()] if end else rest).strip(" *_") or None


def _is_not_meant(text: str, said: re.Match[str]) -> bool:
    """Whether "the answer is" belongs to what is not meant: "you might think the answer is 20"."""
    before = text[max(said.start() - 120, 0) : said.start()]
    before = before[max(before.rfind(end) for end in (". ", "\n", "? ", "! ")) + 1 :]
    would = "would" in said[0].lower()
    return bool(
        _NOT_MEANT.search(before)
        or (would and _UNDER_CONDITION.match(text, said.end()))
        or (would and is_hypothetical(before + said[0]))
    )


def in_json(text: str) -> str | None:
    """The value of the last `"answer": ...`."""
    values = [value for groups in _JSON.findall(text) for value in groups if value]
    return values[-1].rstrip(",.").strip() or None if values else None


def _in_prose(text: str) -> str | None:
    """What running text concludes. One that is short is the answer as a whole: what it says of its
    only number (`x < 7`, "not 7") must not be left out."""
    number, text = concluded(_HOW_SURE.sub("", text)), text.strip()
    short = len(text) <= SHORT and text.isascii() and not _MORE_THAN_WORDS.search(text)
    bare = text.replace("**", "").rstrip("!")
    if short and len(_NUMBER.findall(text)) == 1 and read_quantity(bare) is None:
        return None
    return number


def _last_formula(text: str) -> str | None:
    """What stands between dollar signs, or \\( and \\), at the very end of a text."""
    text = text[-LIMIT:].rstrip(" \n\t.!*")
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.endswith(closing):
            _, begun, formula = text.removesuffix(closing).rpartition(opening)
            if begun and _FORMULA_SIGN.search(formula):
                return formula.strip() or None
    return None


def _normal(text: str) -> str:
    """Text in a form that differs only where answers do: case, spaces and outer marks go."""
    answer = r"^(?:the )?(?:(?:final )?answer(?: is|:) ?)?"
    text = re.sub(answer, "", plain(text), flags=re.IGNORECASE)
    text = text.casefold().strip(" .,;:?\"'")
    text = text.rstrip("!") if text.rstrip("!")[-1:].isalpha() else text  # 5! is a factorial
    # Words stay apart; around anything else a space means nothing.
    text = re.sub(r"(?<![a-z0-9]) | (?![a-z0-9])", "", text)
    return text


def _same_choice(given: str, truth: str) -> bool:
    """(B) = B = b. = "B) 42": one letter, with what it stands for or without."""
    ours, right = _CHOICE.fullmatch(plain(given)), _CHOICE.fullmatch(plain(truth))
    if ours is None or right is None or ours[1].upper() != right[1].upper():
        return False
    return not any(choice[2] and _ANOTHER_CHOICE.search(choice[2]) for choice in (ours, right))


def _same_mathematics(given: str, truth: str) -> bool:
    given, truth = _formula(given), _formula(truth)
    for text in (given, truth):
        if not _MATHEMATICAL.search(text) or not _harmless(text):
            return False
        if _RATIO.search(text) or is_date(text):
            return False
    # Its time limits are signals, which only the main thread gets. Elsewhere, who calls has one.
    in_main = threading.current_thread() is threading.main_thread()
    seconds = _MATH_SECONDS if in_main else None
    parse, verify, configs = _math_verify()
    try:
        right = parse(f"${truth}$", configs, parsing_timeout=seconds)
        ours = parse(f"${given}$", configs, parsing_timeout=seconds)
        if not right or not ours:
            return False  # `7 < x < 8` is the interval (7, 8), where that is the truth
        return verify(right, ours, timeout_seconds=seconds, allow_set_relation_comp=True)
    except Exception:  # whatever a parser of hostile text may raise: it is not the right answer
        return False


def _harmless(formula: str) -> bool:
    """Whether a computer algebra system can be trusted with it."""
    depth = deepest = 0
    for character in formula:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return len(formula) <= LIMIT // 3 and deepest <= 8 and not _DANGEROUS.search(formula)


def _formula(text: str) -> str:
    """The formula as a LaTeX parser wants it: no delimiters, no Unicode for what has a command."""
    text = _ROOT.sub(r"\\sqrt{\1}", text.replace("−", "-").replace("∞", "\\infty "))
    text = text.strip().strip("$").strip()
    return text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]")


@cache
def _math_verify() -> Any:
    """Imported on first need: it brings sympy, which takes a second."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return parse, verify, (LatexExtractionConfig(), ExprExtractionConfig())
