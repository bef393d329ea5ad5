"""Answers as plain text: LaTeX, Markdown and Unicode markup is removed, the content stays.

The input is hostile, so every pattern here is linear and the callers bound its length first.
"""

import re
import unicodedata
from functools import cache

LIMIT = 1000
"""Longer than this nothing is an answer to compare."""

_FAR = 100_000  # where a longer text goes on with another exercise, nothing is cut off
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
    r"|operatorname)\s?\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"\\(?:[,;:> ]|(?:q?quad|displaystyle|left|right|[bB]igg?[lr]?|bf|rm|it|therefore)\b"
    r"|(?:text)?color\{\w*\})|~|\\\\\s*$|</?(?:b|i|u|p|em|strong|span|code)>"
)
_HEXADECIMAL = re.compile(r"(?<=[0-9A-F])\\(?:text|mathrm)\{([A-F]{1,8})\}")
_NAMED = (
    (re.compile(r"\\[()\[\]!]"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?<=[0-9])/-(?![0-9])"), ""),  # Rs. 350/-
    (_HEXADECIMAL, r"\1"),
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


_THOUGHT = re.compile(r"</think>|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>")
_TOKEN = re.compile(  # of chat templates, with the role that they name
    r"<\|(?:im_(?:start|end)|(?:begin|end)[_▁]?of[_▁]?(?:text|sentence|solution)|e[ot][mt]_id|end"
    r"|(?:start|end)_header_id|assistant|user|system|return)\|>(?:(?:assistant|user|system)\b)?"
    r"|</?s>|<[be]os>|\[/?INST\]|<(?:start|end)_of_turn>(?:(?:model|user)\b)?"
)
_STRUCK_OUT = re.compile(r"~~[^~\n]{1,200}~~ ?")
_ANSWERED = re.compile(  # a mark, a letter or number alone, a calculation, a conclusion
    r"\\boxed|####|</answer>|\banswer(?: is\b|\**: ?[^\n])"
    r"|\A\s{0,4}[*(]{0,3}(?:[A-J]|-?[0-9][0-9.,/]{0,15})[.)*]{0,4}(?=\n)|(?:[0-9)] ?="
    r"|\b(?:so|thus|hence|therefore|altogether|total)\b[^\n]{0,100}?) ?[$€£\\*]{0,3}[0-9]",
    re.IGNORECASE,
)
_NEXT_EXERCISE = re.compile(
    r"(?:\A|\n)[\s#*>\[(_-]{0,8}(?:(?P<turn>human|user)\b|(?:(?:another|next|new|similar|follow-?up"
    r"|practice) (?:example|problem|question|exercise)|q|question|problem|exercise|instruction"
    r"|example(?= [0-9])|问题|题目)(?: ?(?P<number>[0-9]{1,3}))?)[\])*_]{0,3} ?[:.)\n]",
    re.IGNORECASE,
)


def reply(text: str) -> str:
    """What a text says in reply: neither what it thinks before </think>, nor tokens of a chat
    template, nor what is struck out, nor what follows the end of its turn, nor the exercises that
    it goes on with."""
    text = ascii_digits(text)
    *thought, said = _THOUGHT.split(text, maxsplit=1)
    if not thought and text.lstrip().startswith("<think>") and "</answer>" not in text:
        return ""  # cut off while it thinks
    said = said if said.strip() else text
    text = next((part for part in _TOKEN.split(said) if part.strip()), said)
    text = _STRUCK_OUT.sub("", text)
    answered = _ANSWERED.search(text, 0, _FAR)
    series = False  # "Question 1: ... Question 2: ..." leads to one answer, the last
    for label in _NEXT_EXERCISE.finditer(text, 0, _FAR):
        behind = answered and answered.end() <= label.start() and not series
        if (behind or label["turn"]) and text[: label.start()].strip():
            return text[: label.start()]
        series = series or label["number"] is not None
    return text


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


_FOOTNOTE = re.compile(
    r"(?<=[.!?])(?: ?\[[0-9]{1,3}\]|[¹²³⁴-⁹]{1,2})(?=\s|$)|(?<=\w) \[[0-9]{1,3}\](?=[.!?]?(?:\s|$))"
)
_IN_TEXT = {"\\cdot": "·", "\\times": "×", "{,}": ",", "\\$": "$", "\\,": " ", "\\!": ""}
_THOUSANDS = re.compile(  # "12 000 people", but "in step 2 300 are added"
    r"\b(?:step|day|week|month|year|room|box|group|case|part|round|level|page|line|number|chapter) "
    r"[0-9]{1,3} [0-9]{3}|(?P<number>(?<![0-9.,])(?<![0-9] )[1-9][0-9]{0,2}(?: [0-9]{3}){1,6}"
    r"(?! ?[0-9/]))",
    re.IGNORECASE,
)
_THOUSANDS_SPACE = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")


def prose_characters(text: str) -> str:
    """Running text with the usual characters: ½ as 1/2, 10⁴ as 10^4, thousands without spaces that
    only separate them."""
    text = _THOUSANDS_SPACE.sub("", _FOOTNOTE.sub("", text)).translate(_CHARACTERS)
    for command, sign in _IN_TEXT.items():
        text = text.replace(command, sign)
    text = with_joined_thousands(text)
    text = _SUPERSCRIPTS.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPT_DIGITS), text)
    return re.sub(" {2,}", " ", text.replace("。", ". "))


def with_joined_thousands(text: str) -> str:
    return _THOUSANDS.sub(lambda m: m[0].replace(" ", "") if m["number"] else m[0], text)


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


_COMMANDS = r"- - \times \cdot \infty \cup \cap \in \pm \sqrt \sqrt[3]"
_SIGNS = {
    ord(sign): f"{word} " for sign, word in zip("–−×·∞∪∩∈±√∛", _COMMANDS.split(), strict=True)
}
_DELIMITER = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])|`|(?<!\d)\*\*|\*\*(?!\d)|°|\^\{?\\circ\}?")
_SIZE = re.compile(
    r"\\[bB]igg?[lr]?(?![A-Za-z])|\\[,;:!]|(?<=\\\\)\[[0-9.]{1,4} ?(?:pt|em|ex|mm)\]"
)
_BRACKETED = re.compile(r"\(([0-9A-F]{1,40})\)(?=_[0-9{])")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(ln|log|sin|cos|tan|pi)(?![A-Za-z])")
_ROOT = re.compile(r"(\\sqrt(?:\[3\])?) (?:\(([^()]{1,40})\)|([0-9]+|[a-z]))")
_ROUNDED = re.compile(
    r"[,;]? ?\((?:[≈=~]|\\approx\b|(?:or )?(?:about|approximately|roughly|around)\b)[^()]{0,80}\)$"
    r"|(?<=[\w)}\]]) ?(?:≈|\\approx\b).*$"
    r"|,? (?:or|which is|i\.e\.) (?:about|approximately|roughly|around)\b.*$"
)


_DESCENDING = re.compile(r"([^<>=≤≥\\]{1,40})(≥|>|\\geq?) ?([a-z]) ?(≥|>|\\geq?)([^<>=≤≥\\]{1,40})")
_FLIPPED = {"≥": "≤", ">": "<", "\\ge": "\\le ", "\\geq": "\\le "}


def latex(text: str) -> str:
    """A formula as a LaTeX parser wants it: no delimiters, no Unicode for what has a command, and
    without the rounded value behind it; 3 > x > 1 as 1 < x < 3."""
    text = _SUPERSCRIPTS.sub(lambda m: f"^{{{m[0].translate(_SUPERSCRIPT_DIGITS)}}}", text)
    text = _BRACKETED.sub(r"\1", text)
    text = _ROUNDED.sub("", _HEXADECIMAL.sub(r"\1", text.strip())).translate(_SIGNS)
    text = _FUNCTION.sub(r"\\\1 ", _DELIMITER.sub("", _SIZE.sub("", text)))
    text = _ROOT.sub(lambda m: f"{m[1]}{{{m[2] or m[3]}}}", text.strip(" \n.,;:"))
    chain = _DESCENDING.fullmatch(text)
    if chain is None:
        return text
    return f"{chain[5]}{_FLIPPED[chain[4]]}{chain[3]}{_FLIPPED[chain[2]]}{chain[1]}"


def _without_markdown(text: str) -> str:
    text = text.replace("`", "")
    if not _POWER.search(text):
        text = text.replace("**", "")
    text = text.strip()
    for mark in ("__", "*", "_"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)]
    return text
