"""Whether a tokenizer's pattern may take much longer than its text is long.

tokenizers matches with Oniguruma, in C, where nothing can interrupt it, and a pattern may come from
a stranger. `(a+)+` is refused for how it is written. Others are tried in a process that is ended
where one takes too long: `\\s+$` goes to the end of a row of blanks from each of them, which is
quadratic. The texts repeat what parts of the pattern match, since there a matcher goes far before
it fails. A pattern may still be slow on a text that is not among these.

    python -I patterns.py < {"path": [...], "seconds": 5, "pattern": "a+b"}
"""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

USED_BY_MODELS = frozenset(
    (
        r"\s+$",  # DeepSeek LLM
        " +▁",  # SentencePiece models that transformers converts
        r"(?=(\d{3})+(?!\d))",  # SuperBPE
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",  # K-EXAONE
    )
)
"""Patterns of known models that would be refused. Long rows of blanks or digits take them long."""
SECONDS = 5
UNBOUNDED = 10
"""From so many repetitions on, those of a pattern count as unlimited."""
SHORT, LONG = 4_000, 16_000
"""Characters of the texts: four times as many take 4 times as long, 16 if the time is quadratic."""
SUSPICIOUS = 0.008
"""Seconds for LONG characters. A match at each takes 3 ms, a quadratic search 20 to 1000."""
GROWTH = 9
WINDOW = 3
MOST_UNITS = 400
COMMON = "aA1 \n\t\r!.,'\"-_/éß中あก\u0301\u00a0\u200b+$^(<😀"

_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_CODE = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}|\\x([0-9a-fA-F]{1,2})|\\u([0-9a-fA-F]{4})")
_OPENING = re.compile(r"\((?:\?(?:#[^)]*\)|<[=!]|[=!>~]|[a-zA-Z-]*:|[a-zA-Z-]*\)|<\w+>|'\w+'))?")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[+?]?")
_REPEATED = re.compile(r"[*+]|\{(\d*)(,?)(\d*)\}")


def why_slow(pattern: str) -> str | None:
    """What is wrong with a pattern; None where nothing is found."""
    if pattern in USED_BY_MODELS:
        return None
    if repeats_repeats(pattern):
        return "that may take for ever, as it repeats what repeats itself"
    if not is_simple(pattern) and grows_in_a_trial(pattern):
        return "whose time grows much faster than the text"
    return None


def is_simple(pattern: str) -> bool:
    """Whether it is but characters and classes, and choices of them."""
    at = 0
    while at < len(pattern):
        if pattern[at] == "(" or _QUANTIFIER.match(pattern, at):
            return False
        at = end_of_one(pattern, at)
    return True


@cache
def grows_in_a_trial(pattern: str) -> bool:
    """By a process of its own, which its system ends after SECONDS of computing."""
    asked = json.dumps({"path": sys.path, "seconds": SECONDS, "pattern": pattern})
    command = [sys.executable, "-I", __file__]
    try:
        done = subprocess.run(
            command, input=asked, text=True, capture_output=True, timeout=20 * SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode > 0:
        raise RuntimeError(f"the pattern {pattern!r} could not be tried: {done.stderr[-500:]}")
    return done.returncode < 0 or json.loads(done.stdout)


def repeats_repeats(pattern: str) -> bool:
    """Whether a group that is repeated holds a repetition or a choice: `(a+)+`, `(a|a)*`.

    Those may try every way to cut a text, 2^n of them. Hardly a tokenizer needs one.
    """
    open_groups, at = [False], 0  # whether each group, and the whole, holds one
    while at < len(pattern):
        character = pattern[at]
        if character == "(":
            open_groups.append(False)
            at += 1
        elif character == ")" and len(open_groups) > 1:
            holds, repeated = open_groups.pop(), _is_repeated(pattern, at + 1)
            if holds and repeated:
                return True
            open_groups[-1] |= holds or repeated
            at += 1
        else:
            open_groups[-1] |= character == "|" or _is_repeated(pattern, at)
            at = end_of_one(pattern, at)
    return False


def _is_repeated(pattern: str, at: int) -> bool:
    """Whether what stands here repeats what stands before it without limit, or often."""
    found = _REPEATED.match(pattern, at)
    if found is None or found.group(1) is None:
        return found is not None
    least, comma, most = found.groups()
    return bool(comma and not most) or int((most or least or "0")[:9]) >= UNBOUNDED


def end_of_one(pattern: str, at: int) -> int:
    """Behind the character, escape (`\\d`, `\\p{L}`, `\\x{41}`) or class that stands here.

    Oniguruma's syntax: a `[` within a class begins another.
    """
    if pattern[at] == "\\":
        if pattern[at + 2 : at + 3] == "{" and pattern[at + 1] in "pPx":
            return pattern.find("}", at) + 1 or len(pattern)
        code = _CODE.match(pattern, at)
        return code.end() if code else at + 2
    if pattern[at] != "[":
        return at + 1
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
        elif pattern[at] == "]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


def sequences(pattern: str) -> list[list[str]]:
    """What stands one after the other, in each alternative of each group.

    >>> sequences(r"(?:ab)+c|\\d")
    [['a', 'b'], ['(?:ab)', 'c'], ['\\\\d']]
    """
    done: list[list[str]] = []
    open_groups: list[tuple[int, list[list[str]]]] = [(0, [[]])]
    at = 0
    while at < len(pattern):
        begin, character = at, pattern[at]
        alternatives = open_groups[-1][1]
        if opening := _OPENING.match(pattern, at):
            at = opening.end()
            if not opening[0].endswith(")"):  # a comment or a flag is no group
                open_groups.append((begin, [[]]))
        elif character == ")" and len(open_groups) > 1:
            at += 1
            begin, inner = open_groups.pop()
            done += inner
            open_groups[-1][1][-1].append(pattern[begin:at])
        elif character == "|":
            alternatives.append([])
            at += 1
        elif quantifier := _QUANTIFIER.match(pattern, at):
            at = quantifier.end()
        else:
            at = end_of_one(pattern, at)
            alternatives[-1].append(pattern[begin:at])
    for _, alternatives in reversed(open_groups):
        done += alternatives
    return [sequence for sequence in done if sequence]


def literals(pattern: str) -> str:
    """The characters that a pattern names, those of classes and escapes too."""
    codes = [int(next(filter(None, code)), 16) for code in _CODE.findall(pattern)]
    rest = re.sub(r"\\[pP]\{[^}]*\}", "", _CODE.sub("", pattern))
    rest = re.sub(r"\\(.)", lambda found: _NAMED.get(found[1], found[1]), rest, flags=re.S)
    return "".join(dict.fromkeys([*map(chr, (c for c in codes if _is_character(c))), *rest]))


def _is_character(code: int) -> bool:
    return code < 0xD800 or 0xDFFF < code < 0x110000


def texts(pattern: str, matches: Callable[[str, str], bool]) -> Iterator[tuple[str, str]]:
    """(unit, tail): what is repeated, and what ends the text.

    `matches(part, character)` says whether one character is what a part of the pattern matches.
    """
    own = literals(pattern)
    known = list(dict.fromkeys([*own, *COMMON]))

    @cache
    def sample(part: str) -> str:
        """A text that the part matches, or nearly."""
        inner = sequences(part) if part[0] == "(" else []
        if inner and inner[0] != [part]:
            return "".join(map(sample, inner[0]))
        return next((c for c in known if matches(part, c)), None) or _rare(part, matches)

    rows = [[sample(part) for part in sequence] for sequence in sequences(pattern)]
    units = dict.fromkeys([*own, *COMMON])
    for row in rows:
        for end in range(1, len(row) + 1):
            begins = {0, *range(max(0, end - WINDOW), end)}
            units |= dict.fromkeys("".join(row[begin:end]) for begin in sorted(begins))
    # A search may stop at once where the text has not what the pattern must end with.
    whole = "".join(map("".join, rows)) + own
    for unit in list(units)[:MOST_UNITS]:
        if unit:
            yield from ((unit, tail) for tail in ("", f"\0{whole}", f"\n{whole}"))


def _rare(part: str, matches: Callable[[str, str], bool]) -> str:
    """A character of a script or class that COMMON has nothing of; empty for what matches none."""
    return next((c for c in map(chr, range(0x80, 0x3000)) if matches(part, c)), "")


def grows(pattern: str) -> bool:
    """Whether four times as much text takes more than GROWTH times as long."""
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    @cache
    def alone(part: str) -> Any:
        try:
            return Replace(Regex(rf"\A(?:{part})\z"), "")
        except Exception:  # a piece that is no pattern by itself
            return None

    def matches(part: str, character: str) -> bool:
        replace = alone(part)
        return part == character if replace is None else replace.normalize_str(character) == ""

    # It searches as the other parts of a tokenizer do, and makes no objects of what it finds.
    search = Replace(Regex(pattern), "")

    def seconds(text: str) -> tuple[float, float]:
        """By the clock, and of computing, which some kernels count in steps of 4 ms."""
        began, computed = time.perf_counter(), time.process_time()
        search.normalize_str(text)
        return time.perf_counter() - began, time.process_time() - computed

    def grows_between(shorter: str, longer: str) -> bool:
        # Of several: the first may wait for memory.
        least = min(seconds(shorter)[0] for _ in range(5))
        return all(min(seconds(longer)) > max(SUSPICIOUS, GROWTH * least) for _ in range(3))

    def is_slow_on(unit: str, tail: str) -> bool:
        short, long, longest = (
            (unit * length)[:length] + tail for length in (SHORT, LONG, 4 * LONG)
        )
        # Twice: on a busy machine a search may take longer for a moment, but not ever longer.
        return (
            min(seconds(long)) >= SUSPICIOUS
            and grows_between(short, long)
            and grows_between(long, longest)
        )

    try:
        return any(is_slow_on(unit, tail) for unit, tail in texts(pattern, matches))
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return True  # Oniguruma gives up after ten million ways to match


if __name__ == "__main__":
    given = json.load(sys.stdin)
    sys.path[:] = given["path"]
    resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"], given["seconds"]))
    print(json.dumps(grows(given["pattern"])))
