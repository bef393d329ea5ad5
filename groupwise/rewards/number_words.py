"""Numbers in words: `twenty-one`, `one hundred and five`, `five apples`, `two thirds`, `half`."""

import re
from fractions import Fraction

SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

_UP_TO_NINETEEN = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
"""
_TENS = "ten twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: 10 * tens for tens, word in enumerate(_TENS.split(), 1)}
_WORDS |= {word: value for value, word in enumerate(_UP_TO_NINETEEN.split())}
_PARTS = "half third quarter fifth sixth seventh eighth ninth tenth eleventh twelfth"
_DENOMINATORS = {word: under for under, word in enumerate(_PARTS.split(), 2)}
_DENOMINATORS |= {f"{word}s": under for word, under in _DENOMINATORS.items()}
_DENOMINATORS |= {"halves": 2, "fourth": 4, "fourths": 4}
_BEGINS = {*_WORDS, "half", "a", "minus", "negative"}
_MORE_THAN_ONE = {*SCALES, *_DENOMINATORS, "more", "less"}
_ADVERBS = ("exactly", "precisely", "about", "approximately", "roughly", "around", "only", "just")


def number_in_words(text: str) -> tuple[Fraction, str] | None:
    """The number that a text says in words and the noun after it, if any; None if it says none."""
    words = re.split(r"[ -]+", text.lower().rstrip(".!"))[:12]
    words = words[1:] if words[0] in _ADVERBS and len(words) > 1 else words
    negative = words[0] in ("minus", "negative") and len(words) > 1
    words = words[1:] if negative else words
    if words[0] in ("a", "an") and len(words) > 1 and words[1] in (*_DENOMINATORS, *SCALES):
        words = ["one", *words[1:]]
    words = ["twelve", *words[2:]] if words[:2] == ["a", "dozen"] else words
    if words[1:2] == ["dozen"] and words[0] in _WORDS:
        return 12 * Fraction(_WORDS[words[0]]), " ".join(words[2:3])
    words = ["one", *words] if words[0] == "half" else words
    if words[0] not in _WORDS:
        return None
    value, rest = _spelled(words)
    if rest[:1] == ["and"] and rest[1:2] and rest[1] in ("a", "one") and len(rest) > 2:
        value, rest = value + Fraction(1, _DENOMINATORS.get(rest[2], 1)), rest[3:]
    elif rest and rest[0] in _DENOMINATORS:
        value, rest = value / _DENOMINATORS[rest[0]], rest[1:]
    if len(rest) > 1 or not all(word.isalpha() and len(word) > 1 for word in rest):
        return None
    if rest and (rest[0] in _WORDS or rest[0] in SCALES or rest[0] in ("and", "or")):
        return None
    return -value if negative else value, rest[0] if rest else ""


def spelled_number(sentence: str) -> str | None:
    """The last number spelled out, with the word after it; no mere "one", no "the two movies"."""
    words = re.findall(r"[a-z]+", sentence[-400:].lower())
    for end in range(len(words), 0, -1):
        for begin in range(max(end - 10, 0), end):
            text = " ".join(words[begin:end])
            if words[begin] in _BEGINS and number_in_words(text):
                if begin and words[begin - 1] in ("the", "these", "those"):
                    break  # "the two movies" were there before
                lone = words[begin] == "one" and not {*words[begin:end]} & _MORE_THAN_ONE
                return None if lone else text
    return None


def _spelled(words: list[str]) -> tuple[Fraction, list[str]]:
    """The number that a list of words begins with, and the words after it. The second of two that
    do not join (`five six`) is left over."""
    total, part, smallest = 0, 0, 100
    while words:
        value, scale = _WORDS.get(words[0]), SCALES.get(words[0])
        joins = value is not None and 0 < value < smallest and (smallest != 10 or value < 10)
        if words[0] == "and" and part and smallest == 100 and words[1:2] and words[1] in _WORDS:
            words = words[1:]
        elif value is not None and (joins or not total + part):
            part, smallest = part + value, 10 if value >= 20 and not value % 10 else 0
            words = words[1:]
        elif scale == 100 and 0 < part < 100:
            part, smallest, words = part * 100, 100, words[1:]
        elif scale and scale > 100 and part:
            total, part, smallest, words = total + part * scale, 0, 100, words[1:]
        else:
            break
    return Fraction(total + part), words
