"""Limits on the text itself: how often it repeats itself, its script, its length in characters.

A limit on tokens is `rollout.overlong_buffer`, since rewards see text.
"""

import re
import unicodedata
from functools import lru_cache

MAX_TEXT = 50_000

_TOKEN = re.compile(r"\w{1,12}|[^\w\s]")

SCRIPTS = {
    **dict.fromkeys(("en", "de", "es", "fr", "it", "nl", "pl", "pt", "sv", "tr", "vi"), ("LATIN",)),
    **dict.fromkeys(("ru", "uk", "bg"), ("CYRILLIC",)),
    "ar": ("ARABIC",),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "hi": ("DEVANAGARI",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL",),
    "th": ("THAI",),
    "zh": ("CJK",),
}
"""Languages and the scripts that they are written in, as Unicode names its characters."""


def repetition(completion: str, size: int = 4, most: float = 1.0) -> float:
    """From 0 down to -most: minus the share of the text's n-grams that it had before.

    repetition("so so so so so so so", size=2) is -5/6. Words count up to 12 characters a piece, so
    one endless word repeats itself too.
    """
    tokens = _TOKEN.findall(completion[:MAX_TEXT].lower())
    grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return most * (len(set(grams)) / len(grams) - 1.0) if grams else 0.0


def language(completion: str, language: str = "en") -> float:
    """The share of letters in the script of a language: 1.0 if all are, or if there are none.

    It tells scripts apart, not two languages that share one. Greek letters are mathematics in any
    language and are left out.
    """
    if language not in SCRIPTS:
        raise ValueError(f"unknown language {language!r}: one of {', '.join(SCRIPTS)}")
    letters = [character for character in completion[:MAX_TEXT] if character.isalpha()]
    if language != "el":
        letters = [character for character in letters if _script(character) != "GREEK"]
    wanted = SCRIPTS[language]
    return sum(_script(letter) in wanted for letter in letters) / len(letters) if letters else 1.0


def length_limits(completion: str, least: int = 1, most: int = 4000) -> float:
    """0.0 for `least` to `most` characters, -1.0 outside; whitespace around it does not count."""
    return 0.0 if least <= len(completion.strip()) <= most else -1.0


@lru_cache(4096)
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0]
