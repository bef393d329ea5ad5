"""What one operation of a chat template may make: estimated before it is done.

A template can be interrupted between operations only. One of them, as `'x' | replace('x', long)`,
may make more than the machine holds, or compute for hours in C.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

LONGEST = 10_000_000
"""Characters of a rendered conversation, and of any text or list on the way to it."""

_WIDE = re.compile(r"\d{8}|%[^%]*\*|:[^}]*\{")
"""In a text that may be a format: '{:99999999}', or a width that is a value too."""
_WRITES = frozenset(
    ("string", "str", "tojson", "pprint", "xmlattr", "urlize", "indent", "wordwrap", "list")
)
"""What writes all of a value, that often as a number beside it says at most."""
_FILLS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "round"))


def bounded(name: str, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
    """`function(*values)`, where it makes no more than LONGEST. Raises ValueError.

    `name` is that of a filter, of a method, whose object is the first value, or of an operator.
    """
    if name == "str" and isinstance(values[0], str):  # most of what is written
        return values[0]
    given = [list(islice(v, LONGEST + 1)) if hasattr(v, "__next__") else v for v in values]
    of_jinja = 1 if hasattr(function, "jinja_pass_arg") else 0  # its context comes first
    subject, others = given[of_jinja], [*given[of_jinja + 1 :], *options.values()]
    numbers = [value for value in others if isinstance(value, int)]
    if name == "*" and isinstance(subject, int):
        numbers.append(subject)
    if name not in ("+", "%") and any(abs(number) > LONGEST for number in numbers):
        raise ValueError(f"it has numbers beyond {LONGEST}, which no template needs")
    if _size_after(name, subject, others, max(1, *numbers, 0)) > LONGEST:
        raise ValueError(f"it writes more than {LONGEST} characters")
    return function(*given, **options)


def joined(parts: Iterable[Any]) -> str:
    """ "".join(parts), where that is not too long."""
    texts, length = [], 0
    for part in parts:
        text = part if isinstance(part, str) else bounded("str", str, part)
        length += len(text)
        if length > LONGEST:
            raise ValueError(f"it writes more than {LONGEST} characters")
        texts.append(text)
    return "".join(texts)


def _size_after(name: str, subject: Any, others: Sequence[Any], times: int) -> int:
    """About how long the result is; hardly ever less than it will be."""
    sized = [value for value in (subject, *others) if isinstance(value, str | list | tuple)]
    texts = [value for value in (subject, *others) if isinstance(value, str)]
    if name == "+":
        return sum(map(len, sized))
    if name == "*":
        return sum(map(len, sized)) * times
    if name in _WRITES:
        return _weight(subject) * max(times, *map(len, texts[1:]), 0)
    if name in _FILLS:
        return (_weight(subject) if name == "expandtabs" else 1) * times
    if name == "replace" and len(texts) > 2:
        text, old, new = texts[:3]
        return len(text) + text.count(old) * len(new)
    if name == "join":
        lists = [value for value in (subject, *others) if not isinstance(value, str)]
        between = max((len(text) for text in texts), default=0)
        return sum(map(_weight, lists)) + sum(map(len, sized)) * between
    if name in ("%", "format", "format_map") and isinstance(subject, str):
        if _WIDE.search(subject):
            return LONGEST + 1
        fields = subject.count("%") + subject.count("{")
        return len(subject) + fields * max(map(_weight, others), default=1)
    return 0


def _weight(value: Any) -> int:
    """How many characters and values it holds, each as often as it occurs; no more are counted than
    it takes to see that they are too many."""
    waiting, weight = [value], 0
    while waiting and weight <= LONGEST:
        one = waiting.pop()
        if isinstance(one, str):
            weight += len(one)
            continue
        weight += 4  # with what is written around it
        if isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
    return weight
