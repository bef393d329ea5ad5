"""Numbers in words: `twenty-one`, `one hundred and five`, `five apples`, `two thirds`, `half`."""

import re
from fractions import Fraction

SCALES = {name: 10**power for name, power in (("hundred", 2), ("thousand", 3), ("million", 6))}
SCALES |= {"billion": 10**9, "trillion": 10**12, "dozen": 12}

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
_SIGNS = {"minus": -1, "negative": -1}
_ADVERBS = ("exactly", "precisely", "about", "approximately", "roughly", "around", "only", "just")


def number_in_words(text: str) -> tuple[Fraction, str] | None:
    """The number that a text says in words and the noun after it, if any; None if it says none."""
    words = re.split(r"[ -]+", text.lower().rstrip(".!"))[:12]
    words = words[1:] if words[0] in _ADVERBS else words
    sign = _SIGNS.get(words[0], 1) if words else 1
    words = words[1:] if sign < 0 else words
    if words[:1] in (["a"], ["an"]) and words[1:2] and words[1] in (*_DENOMINATORS, *SCALES):
        words = ["one", *words[1:]]
    words = ["one", *words] if words[:1] == ["half"] else words
    if not words or words[0] not in _WORDS:
        return None
    value, rest = _spelled(words)
    scaled = value
    parts = _WORDS.get(rest[1], rest[1] == "a") if rest[0:1] == ["and"] and len(rest) > 2 else 0
    if parts and rest[2] in _DENOMINATORS:
        last = SCALES.get(words[len(words) - len(rest) - 1], 1)  # a dozen and a half
        value, rest = value + Fraction(parts * last, _DENOMINATORS[rest[2]]), rest[3:]
    elif rest and rest[0] in _DENOMINATORS:
        value, rest = value / _DENOMINATORS[rest[0]], rest[1:]
    if value != scaled:  # half a dozen, a quarter of a million, two and a half thousand
        joined = [word for word in rest[:3] if word not in ("of", "a", "an")]
        if joined and joined[0] in SCALES:
            value, rest = value * SCALES[joined[0]], rest[rest.index(joined[0]) + 1 :]
    noun = rest[0] if rest else ""
    if len(rest) > 1 or noun in (*_WORDS, *SCALES, "and", "or") or (noun and len(noun) < 2):
        return None
    return (sign * value, noun) if not noun or noun.isalpha() else None


def spelled_number(sentence: str) -> str | None:
    """The last number spelled out, with the word after it; no mere "one", no "the two movies"."""
    words = re.findall(r"[a-z]+", sentence[-400:].lower())
    for end in range(len(words), 0, -1):
        for begin in range(max(end - 10, 0), end):
            if words[begin] in _ADVERBS or not number_in_words(text := " ".join(words[begin:end])):
                continue
            if begin and words[begin - 1] in ("the", "these", "those"):
                break  # "the two movies" were there before
            plural = {*words[begin:end]} & {*SCALES, *_DENOMINATORS, "more", "less"}
            return text if words[begin] != "one" or plural else None
    return None


def _spelled(words: list[str]) -> tuple[Fraction, list[str]]:
    """The number that a list of words begins with, and the words after it. The second of two that
    do not join (`five six`) is left over."""
    total, part, limit = 0, 0, 100  # what may still join is smaller than the limit
    for place, word in enumerate(words):
        value, scale = _WORDS.get(word), SCALES.get(word, 0)
        if value is not None and (0 < value < limit or not total + part):
            part, limit = part + value, 10 if value >= 20 and not value % 10 else 0
        elif scale and part < 100 and scale <= 100 and part:
            part, limit = part * scale, 100
        elif scale > 100 and part:
            total, part, limit = total + part * scale, 0, 100
        elif word != "and" or limit < 100 or not part or not {*words[place + 1 :][:1]} & {*_WORDS}:
            return Fraction(total + part), words[place:]
    return Fraction(total + part), []
