"""Whether formulas are equal, by math-verify: as it wants them written, and only harmless ones.

Model output is hostile, and a computer algebra system expands whatever it is given: what it gets
here is short, and has no towers of powers, no large factorials and nothing to sum or integrate.
"""

import logging
import re
import threading
from collections.abc import Sequence
from functools import cache, lru_cache, reduce
from operator import and_, or_
from typing import Any

from groupwise.answers.notation import HEXADECIMAL, LIMIT, with_powers
from groupwise.answers.quantities import is_date

_SECONDS = 2
_EQUATION = re.compile(r"(?=[^=]*[a-z])[^=]*[0-9a-z})] ?[-+*/^][^=]*=[^=]+")  # no x = 3
_IN_BASE = re.compile(r"[0-9A-F]_\{?(?:\\text\{)?([0-9]{1,2})\}*$")
_JOINED = re.compile(r"[ ,]*(?:\\(?:text|mbox) ?\{ ?)?\b(or|and)\b[ }]*")
_BOUNDED = re.compile(  # x <= 5; the variable once and alone, so that nothing has to be solved
    r"\s*[a-z] ?(?:[<>≤≥]=?|\\[lg](?:eq?|t)(?![a-z]))(?:[^<>=≤≥a-z\\]|\\[a-z]+){1,40}"
)
_RATIO = re.compile(r"[0-9] ?: ?[0-9]")
_MATHEMATICAL = re.compile(r"[0-9\\^+*/=<>(\[{√π∞]|(?:\b[a-z]|^) ?- ?[a-z]\b")
_DANGEROUS = re.compile(
    r"[0-9]{16}"  # a number that could be an exponent, or a factorial
    r"|[0-9] ?[eE][+-]?[0-9]{3}"
    r"|[)\]}|] ?(?:\^|\*\*) ?\{? ?[+-]? ?(?:[0-9]{2}|9)"  # a sum to a high power is expanded
    r"|(?:\^|\*\*) ?\{? ?[+-]? ?[0-9]{4}"
    r"|[0-9]{3} ?!|[)\]}!] ?!|\\(?:int|iint|oint|sum|prod|lim|bigcup|bigcap)(?![a-z])"
    r"|\\[dt]?binom(?! ?\{[0-9]{1,2}\} ?\{[0-9]{1,2}\})"
)

_COMMANDS = r"- - / / / ( ) \times \cdot \infty \cup \cap \in \ne \pm \sqrt \sqrt[3]"
_SIGNS = {
    ord(sign): f"{word} " for sign, word in zip("–−⁄∕÷⟨⟩×·∞∪∩∈≠±√∛", _COMMANDS.split(), strict=True)
}
_DELIMITER = re.compile(
    r"(?<!\\)(?:\$|\\[()\[\]])|`|(?<!\d)\*\*|\*\*(?!\d)|°|\^\{?\\circ\}?"
    r"|\\[bB]igg?[lr]?(?![A-Za-z])|\\[,;:!]"
)
_PLUS_MINUS = re.compile(r"(?:[a-z] ?=)?([^=]*)\\pm(?![a-z])([^=]*)")
_DESCENDING = re.compile(r"([^<>=≤≥\\]{1,40})(≥|>|\\geq?) ?([a-z]) ?(≥|>|\\geq?)([^<>=≤≥\\]{1,40})")
_FLIPPED = {"≥": "≤", ">": "<", "\\ge": "\\le ", "\\geq": "\\le "}
_SET_OF = re.compile(
    r"\\\{ ?([a-z]) ?(?:\\in ?(?:\\mathbb\{R\}|R) ?)?(?:\\mid|\||:)(?![a-z]) ?(.*)\\\}"
)
_COUNT = re.compile(r"[0-9)}]!|\\[dt]?binom|\\choose|[0-9]\}?C_?\{?[0-9]|\bC ?\(")
_PART = r" ?(?:\{ ?([0-9]{1,2}) ?\}|([0-9]))"
_CHOOSE = re.compile(  # \binom 52, {5 \choose 2}, C(5, 2)
    rf"\\[dt]?binom{_PART}{_PART}|\{{ ?([0-9]{{1,2}}) ?\\choose ?([0-9]{{1,2}}) ?\}}"
    r"|\bC ?\(([0-9]{1,2}), ?([0-9]{1,2})\)|(?:\{\})?[_^]\{?([0-9]{1,2})\}?C_\{?([0-9]{1,2})\}?"
)
_ANGLE = re.compile(r"(?:\\left ?)?\\langle|(?:\\right ?)?\\rangle")
_COLUMN = re.compile(r"\\begin\{([pbB]?)matrix\}([^&]+\\\\[^&]+)\\end\{\1matrix\}")
_POINT = re.compile(r"\(([a-z](?: ?, ?[a-z]){1,3})\) ?= ?(\(.+\))")
_COORDINATE = re.compile(r" ?([a-z]) ?= ?([^=]+?) ?")
_AND = re.compile(r"(?:,|;|\\(?:text|mbox) ?\{ ?and ?\}|\band\b)(?:\\[,;: ]|\\q?quad| )*")
_DOMAIN = re.compile(  # x+3 for x ≠ 3: where a formula holds
    r"(?:,|\\q?quad|\\[,;: ]|\s){0,4}\(?(?:(?:\\(?:text|mbox) ?\{)?[ ,]{0,2}"
    r"(?:for|if|where|when|with)(?: all| every)?\b[ }]{0,2})?"
    r"(?:(?:[a-z] ?[-+] ?)?[a-z] ?\\neq? ?-?[0-9a-z]{1,4}"
    r"|[a-z] ?\\in ?\\mathbb ?\{?[A-Z]\}?|(?:(?<=all )|(?<=all } ))[a-z] ?\}?)\)?$"
)
_SOLVED = re.compile(r"[<>≤≥]|\\(?:[lg](?:eq?|t)|ne|in)(?![a-z])")
_CONGRUENT = re.compile(r"\\equiv ?(-?[0-9]{1,9}) ?\(?\\?[pb]?mod ?\{? ?([1-9][0-9]{0,8}) ?\}?\)?")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(ln|log|sin|cos|tan|pi)(?![A-Za-z])")
_DEGREES = re.compile(r"\\(sin|cos|tan) ?\(?([0-9.]{1,6}) ?(?:°|\^ ?\{? ?\\circ ?\}?)\)?")
_POWER = re.compile(r"([1-9][0-9]{0,8}) ?\^ ?\{? ?([0-9]{1,12}) ?\}?")
_LAST_TERM = re.compile(r"(?<=[-+])( ?[0-9]{1,9}[a-z]{2})$")  # ab would be read as a unit
_ALL_REALS = re.compile(r"(?:\\text ?\{ ?)?(?:the )?(?:set of )?all real(?:s| numbers)[ }.]*", re.I)
_ROOT = re.compile(r"(\\sqrt(?:\[3\])?) (?:\(([^()]{1,40})\)|([0-9]+|[a-z]))")


def is_equation(text: str) -> bool:
    """Whether both sides of = count: a + b = 12, and not x = 3."""
    return _EQUATION.fullmatch(text) is not None


def is_count(text: str) -> bool:
    """Whether a formula counts: 5! and \\binom{10}{3} are ways to write whole numbers."""
    return _COUNT.search(text) is not None


def same_mathematics(readings: Sequence[str], truth: str) -> bool:
    """Whether one of the readings of an answer is the truth."""
    return _same(tuple(readings), truth)


@lru_cache(4096)  # a comparison takes 20 ms, and a group's answers are often the same few
def _same(readings: tuple[str, ...], truth: str) -> bool:
    truth = _latex(truth)
    written = list(map(_latex, readings))
    if (power := _power(truth)) is not None and power in map(_power, written):
        return True
    given = [text for text in written if _comparable(text)]
    if truth.startswith("\\{"):  # an interval, or a point, is no set
        given = [text for text in given if text[0] not in "(["]
    if is_equation(truth):  # of which it would compare the right side alone
        given = [text for text in given if "=" in text]
    # Of 11_2 and 11_3 it would compare the digits alone.
    given = [text for text in given if _IN_BASE.findall(text) == _IN_BASE.findall(truth)]
    if not given or not _comparable(truth):
        return False
    if "\\equiv" in truth:
        return truth.replace(" ", "") in [text.replace(" ", "") for text in given]
    # Its time limits are signals, which only the main thread gets. Elsewhere, who calls has one.
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    options = {"timeout_seconds": seconds, "allow_set_relation_comp": True}
    try:  # `7 < x < 8` is the interval (7, 8), where that is the truth
        right, ours = _read(truth, seconds), [_read(text, seconds) for text in given]
        return any(_math_verify().verify(right, one, **options) for one in ours if right and one)
    except Exception:  # whatever a parser of hostile text may raise: it is not the right answer
        return False


def _power(text: str) -> tuple[int, int] | None:
    """The least base of a power, and its exponent: (2, 20) for 4^{10}. It is not calculated."""
    if (power := _POWER.fullmatch(text)) is None:
        return None
    base, exponent = int(power[1]), int(power[2])
    roots = ((round(base ** (1 / root)), root) for root in range(29, 0, -1))
    return next((least, root * exponent) for least, root in roots if least**root == base)


@lru_cache(1024)
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
    harmless = deepest <= 8 and not _DANGEROUS.search(formula) and not _is_tower(formula)
    return len(formula) <= LIMIT // 3 and harmless


def _is_tower(formula: str) -> bool:
    """Whether an exponent has an exponent or a factorial: 9^{0+9^9} and 9^{12!}, not a^2b^3."""
    text = formula.replace(" ", "").replace("**", "^")
    for sign in re.finditer(r"\^[+-]?", text):
        depth = 0
        for place in range(sign.end(), len(text)):
            character = text[place]
            if character in "^!":
                return True
            depth += (character in "{(") - (character in "})")
            if depth <= 0 and character not in ".0123456789":
                ends = character in "})" or place == sign.end()
                if ends and text[place + 1 : place + 2] == "^":
                    return True
                break
    return False


def _latex(text: str) -> str:
    """A formula as a LaTeX parser wants it: no delimiters, no Unicode for what has a command, both
    values of ±, chains of inequalities from the lower end."""
    text = HEXADECIMAL.sub(r"\1", with_powers(text.strip(), "^{{{}}}")).translate(_SIGNS)
    text = _DEGREES.sub(r"\\\1(\\frac{\2\\pi}{180})", text)
    text = _FUNCTION.sub(r"\\\1 ", _DELIMITER.sub("", text)).strip(" \n.,;:")
    text = _LAST_TERM.sub(r"{\1}", text)
    text = _ROOT.sub(lambda m: f"{m[1]}{{{m[2] or m[3]}}}", text)
    text = _CHOOSE.sub(lambda m: "\\binom{{{}}}{{{}}}".format(*filter(None, m.groups())), text)
    text = _CONGRUENT.sub(lambda m: f"\\equiv {int(m[1]) % int(m[2])} \\pmod{{{m[2]}}}", text)
    text = _as_point(_ANGLE.sub(lambda m: "(" if m[0].endswith("langle") else ")", text))
    if (domain := _DOMAIN.search(text)) and not _SOLVED.search(text[: domain.start()]):
        text = text[: domain.start()]
    if _ALL_REALS.fullmatch(text):
        return r"(-\infty, \infty)"
    if (members := _SET_OF.fullmatch(text)) is not None:
        text = members[2].strip()
    if (both := _PLUS_MINUS.fullmatch(text)) and "\\pm" not in both[1]:
        return f"{both[1]}+{both[2]}, {both[1]}-{both[2]}"
    if chain := _DESCENDING.fullmatch(text):  # 3 > x > 1
        high, above, variable, below, low = chain.groups()
        return f"{low}{_FLIPPED[below]}{variable}{_FLIPPED[above]}{high}"
    return text


def _as_point(text: str) -> str:
    """A column, or what is said of each variable in any order, as a point: (2, -3)."""
    if (column := _COLUMN.fullmatch(text)) is not None:
        rows = column[2].split("\\\\")
        return f"({', '.join(rows)})"
    if (point := _POINT.fullmatch(text)) is not None:
        names = point[1].replace(" ", "").split(",")
        return point[2] if names == sorted(names) else text
    values = [_COORDINATE.fullmatch(part) for part in _AND.split(text)]
    found = {value[1]: value[2] for value in values if value}
    if len(values) == len(found) > 1:
        return f"({', '.join(found[name] for name in sorted(found))})"
    return text


@cache
def _math_verify() -> Any:
    """Imported on first need: it brings sympy, which takes a second."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify
