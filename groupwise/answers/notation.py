"""Answers as plain text: LaTeX, Markdown and Unicode markup is removed, the content stays.

The input is hostile, so every pattern here is linear and the callers bound its length first.
"""

import re
import unicodedata
from functools import cache

LIMIT = 1000
"""Longer than this nothing is an answer to compare."""

_CURRENCY_MARK = "\ue000"  # private use: stands for \$ while bare $ signs may be math delimiters
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−‐‑‒–—﹣", "-"),
        **dict.fromkeys("\u00a0\u2000\u2002\u2003\u2004\u2005\u2007\u2008\u2009\u200a\u202f", " "),
        **dict.fromkeys("’‘ʼ", "'"),
        **dict.fromkeys("“”«»", '"'),
        **dict.fromkeys("⁄∕÷", "/"),
        **dict.fromkeys("∙⋅", "·"),
        **{
            vulgar: f" {unicodedata.normalize('NFKC', vulgar).replace('⁄', '/')} "
            for vulgar in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
        },
    }
)
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴-⁹⁻]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_FOOTNOTE = re.compile(
    r"(?<=[.!?])(?: ?\[[0-9]{1,3}\]|[¹²³⁴-⁹]{1,2})(?=\s|$)"
    r"|(?<=\w) \[[0-9]{1,3}\](?=[.,!?]?(?:\s|$))"
)
_THOUSANDS = re.compile(  # "12 000 people", but "in step 2 300 are added"
    r"\b(?:step|day|week|month|year|room|group|case|part|round|level|page|line|number) "
    r"[0-9]{1,3} [0-9]{3}|(?P<number>(?<![0-9.,])(?<![0-9] )[1-9][0-9]{0,2}(?: [0-9]{3}){1,6}"
    r"(?! ?[0-9/]))",
    re.IGNORECASE,
)

_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|framebox|text(?:bf|it|rm|tt|sf)?|math(?:rm|bf|it|sf)|mbox|emph|underline"
    r"|operatorname)\s?\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"\\(?:[,;:> ]|(?:q?quad|displaystyle|left|right|[bB]igg?[lr]?|bf|rm|it|therefore)\b"
    r"|(?:text)?color\{\w*\})|~|\\\\\s*$|</?(?:b|i|u|p|em|strong|span|code)>"
)
HEXADECIMAL = re.compile(r"(?<=[0-9A-F])\\(?:text|mathrm)\{([A-F]{1,8})\}")
_SIGNS = (
    (re.compile(r"\\[()\[\]!]"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^ ?(?:\\circ\b|\{ ?\\circ ?\})|\\degree\b"), "°"),
    (re.compile(r"\\times(?![A-Za-z])"), "×"),
    (re.compile(r"\\cdot(?![A-Za-z])"), "·"),
    (re.compile(r"\\(?:approx|simeq|sim)(?![A-Za-z])"), "≈"),
    (re.compile(r"\\(?:emptyset|varnothing)(?![A-Za-z])"), "∅"),
    (re.compile(r"(?<=[0-9])_(?:10|\{ ?10 ?\})(?![0-9])"), ""),  # 45_{10}: the usual base
    (re.compile(r"(?<=[0-9A-F]) \(?(?:in )?base[- ]?([0-9]{1,2})\b\)?"), r"_\1"),
    (re.compile(r"\b([ap])\. ?m\.(?!\w)"), r"\1m"),  # 8 a.m.
    # nothing other than 16
    (re.compile(r"\b(?:no(?:thing|ne|t)?) (?:other|else) than |\bnothing (?:less than|but) "), ""),
)
_POWER = re.compile(r"[0-9)\]}A-Za-z] ?\*\* ?[0-9({A-Za-z]")


def plain(text: str) -> str:
    """The answer without markup: `$\\boxed{1{,}234\\text{ km}}$` becomes `1,234 km`.

    What LaTeX is left afterwards means something (\\sqrt, \\pi, ...). Takes up to LIMIT characters.
    """
    assert len(text) <= LIMIT
    text = with_powers(ascii_digits(text).replace("\\$", _CURRENCY_MARK), "^{}")
    text = HEXADECIMAL.sub(r"\1", _SPACING.sub(" ", text.translate(_CHARACTERS)))
    text = _with_signs(text)
    for _ in range(4):  # as deep as sane answers nest
        text, count = _WRAPPER.subn(r" \1 ", text)
        if not count:
            break
    # An even number of dollar signs delimits formulas; an odd one is money.
    if text.count("$") % 2 == 0:
        text = text.replace("$", " ")
    text = text.replace(_CURRENCY_MARK, "$").replace("$$", "$")
    return " ".join(_without_markdown(text).split())


def prose_characters(text: str) -> str:
    """Running text with the usual characters: ½ as 1/2, 10⁴ as 10^4, thousands without spaces that
    only separate them."""
    text = _with_signs(_FOOTNOTE.sub("", text).translate(_CHARACTERS))
    text = with_joined_thousands(text.replace("\\$", "$").replace("\\,", " "))
    return re.sub(" {2,}", " ", with_powers(text, "^{}").replace("。", ". "))


def with_powers(text: str, form: str) -> str:
    """with_powers("x²", "^{}") == "x^2"."""
    return _SUPERSCRIPTS.sub(lambda m: form.format(m[0].translate(_SUPERSCRIPT_DIGITS)), text)


def with_joined_thousands(text: str) -> str:
    """with_joined_thousands("12 000 people") == "12000 people"."""
    return _THOUSANDS.sub(lambda m: m[0].replace(" ", "") if m["number"] else m[0], text)


def ascii_digits(text: str) -> str:
    """Digits of all scripts as 0-9, full-width letters and signs as usual ones, without pictures
    and marks that are not seen (of direction, of width zero)."""
    return text if text.isascii() else "".join(map(_usual, text))


@cache
def _usual(character: str) -> str:
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    form = unicodedata.decomposition(character).partition(" ")[0]
    if form in ("<wide>", "<circle>", "<square>") or "𝐀" <= character <= "𝟿":
        return unicodedata.normalize("NFKC", character)
    if name.startswith("NEGATIVE SQUARED LATIN CAPITAL LETTER "):
        return name[-1]
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Cf" or character == "\ufe0f" or "🌀" <= character <= "\U0001faff":
        return ""
    return {"٫": ".", "٬": ","}.get(character, character)


def _with_signs(text: str) -> str:
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    return text


def _without_markdown(text: str) -> str:
    text = text.replace("`", "")
    if not _POWER.search(text):
        text = text.replace("**", "")
    text = text.strip()
    for mark in ("__", "*", "_"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)]
    return text
