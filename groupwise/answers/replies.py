"""What of a model's output is its reply: not its thoughts, nor what it goes on to after its turn.

Model output is hostile, so every pattern is linear.
"""

import re

from groupwise.answers.notation import ascii_digits

_FAR = 100_000  # where a longer text goes on with another exercise, nothing is cut off
_THOUGHT = re.compile(r"</think>|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>")
_TOKEN = re.compile(  # of chat templates, with the role that they name
    r"<\|[\w▁]{1,30}\|>(?:(?:assistant|user|system)\b)?|</?s>|<[be]os>|\[/?INST\]"
    r"|<(?:start|end)_of_turn>(?:(?:model|user)\b)?"
)
_NOT_SHOWN = re.compile(r"~~[^~\n]{1,200}~~ ?|<!--[^<>]{0,400}-->")
_NO_BACKSLASH = re.compile(  # frac{2}{3}, also where \f and \b were read as control characters
    r"(?<![\\A-Za-z])(?:\x0c(?=rac\{)|\x08(?=oxed\{)|(?=(?:[dtc]?frac|sqrt|boxed)\{))"
)
_WITH_BACKSLASH = {"\x0c": "\\f", "\x08": "\\b", "": "\\"}
_ANSWERED = re.compile(  # a mark, a letter or number alone, a calculation, a conclusion
    r"\\boxed|####|</answer>|\banswer(?: is\b|\**: ?[^\n])"
    r"|\A\s{0,4}[*(]{0,3}(?:[A-J]|-?[0-9][0-9.,/]{0,15})[.)*]{0,4}(?=\n)|(?:[0-9)] ?="
    r"|\b(?:so|thus|hence|therefore|altogether|total)\b[^\n]{0,100}?) ?[$€£\\*]{0,3}[0-9]",
    re.IGNORECASE,
)
_NEXT_EXERCISE = re.compile(
    r"(?:\A|\n)[\s#*>\[(_-]{0,8}(?:(?P<turn>human|user)\b|(?:(?:another|next|new|similar|follow-?up"
    r"|practice) (?:example|problem|question|exercise)|q|question|problem|exercise|instruction"
    r"|example(?= [0-9])|问题|题目)(?: ?(?P<number>[0-9]{1,3}))?"
    r"|[0-9]{1,3}(?=[.)] [^\n]{10,400}\?\s*\n))[\])*_]{0,3} ?[:.)\n]",
    re.IGNORECASE,
)


def reply(text: str) -> str:
    """What a text says in reply: neither what it thinks before </think>, nor tokens of a chat
    template, nor what is struck out or a comment in HTML, nor what follows the end of its turn, nor
    the exercises that it goes on with."""
    text = ascii_digits(text)
    *thought, said = _THOUGHT.split(text, maxsplit=1)
    if not thought and text.lstrip().startswith("<think>") and "</answer>" not in text:
        return ""  # cut off while it thinks
    said = said if said.strip() else text
    text = next((part for part in _TOKEN.split(said) if part.strip()), said)
    text = _NOT_SHOWN.sub("", text)
    text = _NO_BACKSLASH.sub(lambda match: _WITH_BACKSLASH[match[0]], text)
    answered = _ANSWERED.search(text, 0, _FAR)
    series = False  # "Question 1: ... Question 2: ..." leads to one answer, the last
    for label in _NEXT_EXERCISE.finditer(text, 0, _FAR):
        behind = answered and answered.end() <= label.start() and not series
        if (behind or label["turn"]) and text[: label.start()].strip():
            return text[: label.start()]
        series = series or label["number"] is not None
    return text
