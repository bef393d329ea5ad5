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
from collections.abc import Sequence
from functools import cache, reduce
from operator import and_, or_
from typing import Any

from groupwise.rewards.notation import LIMIT, latex, plain, reply
from groupwise.rewards.prose import concluded, concluded_formulas, concludes_with, is_hypothetical
from groupwise.rewards.quantities import (
    Quantity,
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
    r"(?:\A|\n)A: |\banswer(?: (?:is|are|(?:must|should|would|will) be)\b(?!n't)|:| ="
    r"| (?=(?:[a-z]{2,6}n't|cannot|[a-z]{3,6} not)\b))(?: ?:)? ?",
    re.IGNORECASE,
)
_JSON = re.compile(
    r"[\"'](?:final[_ ]?)?(?:answer|choice|option|result|solution)[\"']\s{0,4}:\s{0,4}"
    r"(?:\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'|(-?[0-9][0-9.,eE+/-]{0,40}))",
    re.IGNORECASE,
)
_HOW_SURE = re.compile(
    r"[(,;](?:[^(),;\n.]|\.(?=[0-9])){0,40}\b(?<!not )(?:sure\b(?! to)|confiden|certain)"
    r"[^()\n]{0,30}\)?[.\s]*$"
)
_NOT_MEANT = re.compile(  # what somebody else would answer, or the wrong way
    r"\b(?:(?:might|may|could|would|some|people|many|others?|someone) (?:\w{1,12} ){0,2}"
    r"(?:say|think|answer|guess|claim|believe|assume|argue)s?|(?:do not|don't) (?:think|believe)"
    r"|doubt|tempt(?:ed|ing)|wrong|incorrect|naive)"
    r"\b[^.!?\n]{0,40}$",
    re.IGNORECASE,
)
_UNDER_CONDITION = re.compile(r"[^.!?\n]{0,60}\bif\b")
_RETRACTED = re.compile(
    r"\b(?:edit|correction|sorry|misread|wait|actually|hmm|oops|forgot|scratch that)\b.*[0-9]",
    re.IGNORECASE | re.DOTALL,
)
_OR_BOX = re.compile(r"\}[\s$\\)\]]*,?\s(?:or|oder|ou)\s[\s$\\(\[]*(?:[a-z]\s?=\s?)?$")
_TAKES_BACK_BOX = re.compile(  # begins again and is cut off before it has one
    r"\b(?:torn|decide|choose|choosing) between\b.{0,60}boxed.{0,40}boxed"
    r"|\b(?:wrong|mistake|incorrect|not right)\b"
    r".{0,200}\b(?:recompute|recalculate|redo|try again|start over)\b(?!.*(?:boxed|####))",
    re.IGNORECASE | re.DOTALL,
)
_DENIED_NEXT = re.compile(r"[\s\"']*(?:this|that) is (?:incorrect|wrong)\b", re.IGNORECASE)
_APPROXIMATELY = re.compile(r" ?(?:≈|\\approx) ?")
_MORE_THAN_WORDS = re.compile(r"[\\\n]|[0-9],[0-9]")
_NOTHING = re.compile(r"(?:none|nothing|nobody|no one|zero)[.!](?:\s|$)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+(?:[.,/][0-9]+)*")
_FORMULA_SIGN = re.compile(r"[\\=^/]")
_EQUATION = re.compile(r"(?=[^=]*[a-z])[^=]*[0-9a-z})] ?[-+*/^][^=]*=[^=]+")  # no x = 3
_SUM_IS = re.compile(  # a + b = 12, 6(18) = 108
    r"(?:[^=]*[a-z0-9)}] ?(?:[-+*/^]|\\[dt]?frac|\\cdot)|\s*[0-9])[^=]*=[^<>,]*"
)
_LAST_FORMULA = re.compile(
    r"(?:\$([^$]{1,200})\$\$?|\\[(\[]((?:(?!\\[(\[]).){1,200})\\[)\]])[\s.!*]*$", re.DOTALL
)
_SENTENCE_END = re.compile(r"\n|。|[.!?](?<!\bi\.e\.)(?<!\be\.g\.)(?:\s|$)")
_CHOICE = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|choice|answer)(?: is|:)? ?)?"
    r"[(\[{\"']?([A-J])(?:[)\]}\"'][.:]?|[.:]| ?-|)(?:(?<=[)\].:-])\s(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_ANOTHER_CHOICE = re.compile(
    r"(?:is|was|cannot|can't)(?:n't| not| wrong| incorrect| be)\b|\bor\b|\band\b"
    r"|\(?\b[A-Ja-j]\)|^[A-J]\b"
)
_BARE_BOX = re.compile(r"\\boxed ([0-9]{1,20}|[A-Za-z](?![A-Za-z]))")
_SAID_BASE = re.compile(r"(?<![0-9A-Za-z_])([0-9A-F]{1,40}) \(?(?:in )?base[- ]?([0-9]{1,2})\b\)?")
_BASE_BEHIND = re.compile(r"\$?(_\{?[0-9]{1,2}\}?)")
_IN_BASE = re.compile(r"[0-9A-F]_\{?(?:\\text\{)?([0-9]{1,2})\}*$")
_JOINED = re.compile(r"[ ,]*(?:\\(?:text|mbox) ?\{ ?)?\b(or|and)\b[ }]*|\\(?:cup|lor)\b")
_BOUNDED = re.compile(  # 2 < x <= 5; the variable once, so that nothing has to be solved
    r"\s*(?:[^<>=≤≥]{1,40}(?:[<≤]|\\l)[etq=]{0,2} ?)?([a-z]) ?(?:[<>≤≥]=?|\\[lg](?:eq?"
    r"|t)(?![a-z]))(?!.*(?<![a-z\\])\1(?![a-z]))[^<>≤≥]{1,40}|\s*[(\[][^<>]{0,60}infty[^<>]{0,60}"
)
_MEANINGS = re.compile(
    r"(?:there (?:is|are) )?(?:(?P<infinitely_many>(?:infinitely many|infinite(?: number of)?"
    r"|∞|\\infty)(?: solutions?)?)|(?P<no_solution>no solutions?|∅))$"
)
_RATIO = re.compile(r"[0-9] ?: ?[0-9]")
_MATHEMATICAL = re.compile(r"[0-9\\^+*/=<>(\[{√π∞]|\b[a-z] ?- ?[a-z]\b")
_DANGEROUS = re.compile(
    r"[0-9]{16}"  # a number that could be an exponent, or a factorial
    r"|[0-9] ?[eE][+-]?[0-9]{3}"
    r"|[)\]}|] ?(?:\^|\*\*) ?\{? ?[+-]? ?(?:[0-9]{2}|9)"  # a sum to a high power is expanded
    r"|(?:\^|\*\*) ?\{? ?[+-]? ?[0-9]{4}"
    r"|(?:\^|\*\*)[^,+\-=]{0,20}(?:\^|\*\*)"  # a tower
    r"|[0-9]{3} ?!|[)\]}!] ?!|\\(?:int|iint|oint|sum|prod|lim|bigcup|bigcap)(?![a-z])"
    r"|\\[dt]?binom(?! ?\{[0-9]{1,2}\} ?\{[0-9]{1,2}\})"
)


def correct(completion: str, answer: Any) -> bool:
    """Whether the completion's final answer is `answer` (GSM8K's "... #### 42" counts as 42)."""
    truth = str(answer)
    if "####" in truth:
        truth = truth.rpartition("####")[2]
    text = _SAID_BASE.sub(r"\1_{\2}", reply(completion))
    if (given := _marked(text)) is None:
        said = _after_saying_so(text[-TAIL:])
        given = _unmarked(text[-TAIL:]) if said is None else said
        if said and said[0].isupper() and len(said) > SHORT and read_quantity(said) is None:
            given = concluded(said) or given  # Answer: Ray takes 54 minutes longer than ...
        if len(truth) <= LIMIT and _true_quantity(truth) is None:
            given = text if given is None and len(text) <= SHORT else given
            text = text[-TAIL:] if said is None else said
            words = plain(truth).casefold()
            if concludes_with(text, words) or _same_mathematics(concluded_formulas(text), truth):
                return True
    return given is not None and same_answer(given, truth)


def final_answer(text: str) -> str | None:
    """The answer that a text ends on, as it is written there.

    In `<answer>` tags, else the last \\boxed{}, else after the last ####, else in JSON, else after
    "the answer is", else the formula that the text ends on, else the number that its last sentences
    conclude with (prose.py). Two answers in tags are none: the writer has not decided on one.
    """
    text = reply(text)
    if (marked := _marked(text)) is not None:
        return marked or None
    said = _after_saying_so(text[-TAIL:])
    return _unmarked(text[-TAIL:]) if said is None else said or None


def _marked(text: str) -> str | None:
    """What a mark singles out: tags, a box, ####, JSON. "" where that is no answer."""
    if "<answer>" in text and "</answer>" in text:
        content = (tag_content(text, "answer") or "").strip()
        return (boxed_answer(content) or content).strip()
    boxed = boxed_answer(text)
    if boxed is not None:
        tail = text[-TAIL:]
        return "" if _TAKES_BACK_BOX.search(tail) else _with_alternatives(boxed, text).strip()
    return _after_hashes(text) or in_json(text[-TAIL:])


def _with_alternatives(boxed: str, text: str) -> str:
    """The last box, and those that "or" joins it to: two solutions, or one who has not decided."""
    for _ in range(8):
        text = text[: max(text.rfind("\\boxed"), text.rfind("\\fbox"))]
        before = boxed_answer(text) if _OR_BOX.search(text[-40:]) else None
        if before is None:
            break
        boxed = f"{before} or {boxed}"
    return boxed


def _unmarked(tail: str) -> str | None:
    """What running text concludes: the formula that it ends on, else a number."""
    if (formula := _LAST_FORMULA.search(tail)) and _FORMULA_SIGN.search(formula[0]):
        if _SUM_IS.match(last := formula[1] or formula[2]):
            return last
        return next(iter(concluded_formulas(tail)), None)
    return _in_prose(tail)


def same_answer(given: str, truth: str) -> bool:
    """Whether two short texts state the same answer, as the module's docstring defines it."""
    given, truth = (_unboxed(text).strip() for text in (given, truth))
    if not given or not truth or len(given) > LIMIT or len(truth) > LIMIT:
        return False
    exactly, _, roughly = _APPROXIMATELY.sub("≈", given).partition("≈")
    if is_rounded(exactly, roughly):  # 1/6 ≈ 0.167
        return same_answer(exactly, truth) or same_answer(roughly, truth)
    right, ours = _true_quantity(truth), read_quantity(given)
    if right is not None and ours is None:
        ours = read_quantity(with_decimal_point(given))
    if right is not None and ours is not None:
        return same_quantity(ours, right)
    if _normal(given) == _normal(truth) or _same_choice(given, truth):
        return True
    return right is None and _same_mathematics([given], truth)


def _true_quantity(truth: str) -> Quantity | None:
    """The quantity that a truth is; None for an equation, of which it is more than one side."""
    return None if _EQUATION.fullmatch(truth) else read_quantity(truth)


def canonical_answer(text: str) -> str | None:
    """The final answer in a form that equal answers share, for voting; None where there is none."""
    answer = final_answer(text)
    if answer is None or len(answer) > LIMIT:
        return None
    number = extract_number(answer)
    return str(number) if number is not None else _normal(answer) or None


def boxed_answer(text: str) -> str | None:
    """What the last \\boxed{...} that closes holds, braces within it balanced."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start > 0 and "}" not in text[start:]:
        start = max(text.rfind("\\boxed{", 0, start), text.rfind("\\fbox{", 0, start))
    if start < 0:
        bare = _BARE_BOX.findall(text[-TAIL:])
        return bare[-1] if bare else None
    start = text.index("{", start) + 1
    depth = 1
    for position in range(start, min(start + LIMIT, len(text))):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            base = _BASE_BEHIND.match(text, position + 1)
            return text[start:position] + (base[1] if base else "")
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
    """What stands after "the answer is"; "" where that is asked."""
    text = text.rstrip(" *:$\n")
    matches = [match for match in _SAYS.finditer(text) if not _is_not_meant(text, match)]
    if matches and matches[-1].end() == len(text):
        matches.pop()  # repeats itself, and is cut off
    if not matches:
        return None
    rest = text[matches[-1].end() :].lstrip(" *:\n")
    end = _SENTENCE_END.search(rest)
    if end and end[0].startswith("?"):
        return ""  # a question is no answer
    if end and (_RETRACTED.search(rest, end.end()) or _DENIED_NEXT.match(rest, end.end())):
        return None
    return (rest[: end.start()] if end else rest).strip(" *_✅✓✔☑") or None


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
    if number is None and _NOTHING.match(text):
        return "0"
    short = len(text) <= SHORT and text.isascii() and not _MORE_THAN_WORDS.search(text)
    bare = text.replace("**", "").rstrip("!")
    if short and len(_NUMBER.findall(text)) == 1 and read_quantity(bare) is None:
        return None
    return number


def _normal(text: str) -> str:
    """Text in a form that differs only where answers do: case, spaces and outer marks go."""
    answer = r"^(?:the )?(?:(?:final )?answer(?: is|:) ?)?"
    text = re.sub(answer, "", plain(text), flags=re.IGNORECASE)
    text = text.casefold().strip(" .,;:?\"'")
    text = text.rstrip("!") if text.rstrip("!")[-1:].isalpha() else text  # 5! is a factorial
    if (meaning := _MEANINGS.match(text)) is not None:
        return meaning.lastgroup or ""
    # Words stay apart; around anything else a space means nothing.
    text = re.sub(r"(?<![a-z0-9]) | (?![a-z0-9])", "", text)
    return text


def _same_choice(given: str, truth: str) -> bool:
    """(B) = B = b. = "B) 42": one letter, with what it stands for or without."""
    ours, right = _CHOICE.fullmatch(plain(given)), _CHOICE.fullmatch(plain(truth))
    if ours is None or right is None or ours[1].upper() != right[1].upper():
        return False
    return not any(choice[2] and _ANOTHER_CHOICE.search(choice[2]) for choice in (ours, right))


def _same_mathematics(readings: Sequence[str], truth: str) -> bool:
    """Whether one of the readings of an answer is the truth, by math-verify."""
    truth = latex(truth)
    given = [text for text in map(latex, readings) if _comparable(text)]
    if truth.startswith("\\{"):  # an interval, or a point, is no set
        given = [text for text in given if text[0] not in "(["]
    if _EQUATION.fullmatch(truth):  # of which it would compare the right side alone
        given = [text for text in given if "=" in text]
    # A computer algebra system would compare the digits of 11_2 and 11_3 alone.
    given = [text for text in given if _IN_BASE.findall(text) == _IN_BASE.findall(truth)]
    if not given or not _comparable(truth):
        return False
    # Its time limits are signals, which only the main thread gets. Elsewhere, who calls has one.
    seconds = _MATH_SECONDS if threading.current_thread() is threading.main_thread() else None
    options = {"timeout_seconds": seconds, "allow_set_relation_comp": True}
    try:  # `7 < x < 8` is the interval (7, 8), where that is the truth
        right, ours = _read(truth, seconds), [_read(text, seconds) for text in given]
        return any(_math_verify().verify(right, one, **options) for one in ours if right and one)
    except Exception:  # whatever a parser of hostile text may raise: it is not the right answer
        return False


def _read(formula: str, seconds: int | None) -> Any:
    """What math-verify makes of a formula; of `x < 1 or x > 2`, the set of both."""
    parts = _JOINED.split(formula)
    limits = len(parts) > 1 and all(map(_BOUNDED.fullmatch, parts[::2]))
    texts = [f"${part}$" for part in (parts[::2] if limits else [formula])]
    read = [_math_verify().parse(text, parsing_timeout=seconds) for text in texts]
    if not limits:
        return read[0]
    sets = [one.as_set() if hasattr(one, "as_set") else one for one, *_ in read]
    return [reduce(and_ if "and" in parts[1::2] else or_, sets)]


def _comparable(formula: str) -> bool:
    """Whether it is mathematics that a computer algebra system can be trusted with."""
    if not _MATHEMATICAL.search(formula) or _RATIO.search(formula) or is_date(formula):
        return False
    depth = deepest = 0
    for character in formula:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return len(formula) <= LIMIT // 3 and deepest <= 8 and not _DANGEROUS.search(formula)


@cache
def _math_verify() -> Any:
    """Imported on first need: it brings sympy, which takes a second."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify
