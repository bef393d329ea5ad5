"""Answers as plain text: LaTeX, Markdown and Unicode markup is removed, the content stays.

The input is hostile, so every pattern here is linear and the callers bound its length first.
"""

import re
import unicodedata
from functools import cache

LIMIT = 1000
"""Longer than this nothing is an answer to compare."""

_CURRENCY_MARK = "\ue000"  # private use: stands for \$ while bare $ signs may be math delimiters

_VULGAR = {
    character: f" {unicodedata.normalize('NFKC', character).replace('⁄', '/')} "
    for character in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
}
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−‐‑‒–—﹣－", "-"),
        **dict.fromkeys("\u00a0\u2000\u2002\u2003\u2004\u2005\u2007\u2008\u2009\u200a\u202f", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **dict.fromkeys("’‘ʼ", "'"),
        **dict.fromkeys("“”«»", '"'),
        **_VULGAR,
        "⁄": "/",
        "∕": "/",
        "÷": "/",
        "∙": "·",
        "⋅": "·",
    }
)
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴-⁹⁻]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|framebox|text(?:bf|it|rm|tt|sf)?|math(?:rm|bf|it|sf)|mbox|emph|underline"
    r"|operatorname)"
    r"\s?\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"\\(?:[,;:> ]|(?:q?quad|displaystyle|left|right|bf|rm|it|therefore)\b|(?:text)?color\{\w*\})"
    r"|~|\\\\\s*$|</?(?:b|i|u|p|em|strong|span|code)>"
)
_NAMED = (
    (re.compile(r"\\[()\[\]!]"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^ ?(?:\\circ\b|\{ ?\\circ ?\})|\\degree\b"), "°"),
    (re.compile(r"\\times(?![A-Za-z])"), "×"),
    (re.compile(r"\\cdot(?![A-Za-z])"), "·"),
    (re.compile(r"\\(?:approx|simeq|sim)(?![A-Za-z])"), "≈"),
    (re.compile(r"\\(?:emptyset|varnothing)(?![A-Za-z])"), "∅"),
    (re.compile(r"(?<=[0-9])_(?:10|\{ ?10 ?\})(?![0-9])"), ""),  # 45_{10}: the usual base
    (re.compile(r"\\pounds\b"), "£"),
    (re.compile(r"\\euro\b"), "€"),
    (re.compile(r"\b([ap])\. ?m\.(?!\w)"), r"\1m"),  # 8 a.m.
)
_SPACES = re.compile(r"\s+")
_POWER = re.compile(r"[0-9)\]}A-Za-z] ?\*\* ?[0-9({A-Za-z]")


def after_thinking(text: str) -> str:
    """What a reply says behind its first </think>, if anything: what was thought is no answer."""
    said = text.partition("</think>")[2]
    return said if said.strip() else text


def ascii_digits(text: str) -> str:
    """Digits of all scripts as 0-9, full-width letters and signs as usual ones, without marks that
    are not seen (of direction, of width zero)."""
    return text if text.isascii() else "".join(map(_usual, text))


@cache
def _usual(character: str) -> str:
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    if "①" <= character <= "⑳" or "Ⓐ" <= character <= "ⓩ" or "𝐀" <= character <= "𝟿":
        return unicodedata.normalize("NFKC", character)
    if "🄰" <= character <= "🆉" and unicodedata.name(character, "")[-2:-1] == " ":
        return unicodedata.name(character)[-1]  # a letter in a box
    if "🌀" <= character <= "\U0001faff":
        return ""  # pictures
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    return (
        ""
        if category == "Cf" or character == "\ufe0f"
        else {"٫": ".", "٬": ","}.get(character, character)
    )


_FOOTNOTE = re.compile(r"(?<=[.!?])(?: ?\[[0-9]{1,3}\]|[¹²³⁴-⁹]{1,2})(?=\s|$)")
_MILLIONS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3}){2,6}(?![0-9])")
_THOUSANDS_SPACE = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")


def prose_characters(text: str) -> str:
    """Running text with the usual characters: ½ as 1/2, 10⁴ as 10^4, thousands without spaces that
    only separate them."""
    text = _THOUSANDS_SPACE.sub("", _FOOTNOTE.sub("", text))
    text = text.replace("\\cdot", "·").replace("\\times", "×")
    text = _MILLIONS.sub(lambda m: m[0].replace(" ", ""), text)
    text = _SUPERSCRIPTS.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPT_DIGITS), text)
    return re.sub(" {2,}", " ", text.translate(_CHARACTERS))


def plain(text: str) -> str:
    """The answer without markup: `$\\boxed{1{,}234\\text{ km}}$` becomes `1,234 km`.

    What LaTeX is left afterwards means something (\\sqrt, \\pi, ...). Takes up to LIMIT characters.
    """
    assert len(text) <= LIMIT
    text = ascii_digits(text).replace("\\$", _CURRENCY_MARK)
    text = _SUPERSCRIPTS.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPT_DIGITS), text)
    text = text.translate(_CHARACTERS)
    text = _SPACING.sub(" ", text)
    for pattern, replacement in _NAMED:
        text = pattern.sub(replacement, text)
    for _ in range(4):  # as deep as sane answers nest
        text, count = _WRAPPER.subn(r" \1 ", text)
        if not count:
            break
    # An even number of dollar signs delimits formulas; an odd one is money.
    if text.count("$") % 2 == 0:
        text = text.replace("$", " ")
    text = text.replace(_CURRENCY_MARK, "$").replace("$$", "$")
    return _SPACES.sub(" ", _without_markdown(text)).strip()


def _without_markdown(text: str) -> str:
    text = text.replace("`", "")
    if not _POWER.search(text):
        text = text.replace("**", "")
    text = text.strip()
    for mark in ("__", "*", "_"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)]
    return text
