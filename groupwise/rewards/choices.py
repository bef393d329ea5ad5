"""Multiple choice: which option an answer chooses.

The prompt asks for the letter in <answer> tags. Also accepted: the letter with its option's text,
that text alone where exactly one option has it, and, without tags, the last place where the text
says what the answer is. Two different letters are no answer: the writer has not decided.
"""

import re
from collections.abc import Sequence

from groupwise.rewards.answers import TAIL, final_answer, in_json, same_answer
from groupwise.rewards.notation import LIMIT, ascii_digits
from groupwise.rewards.quantities import last_number
from groupwise.rewards.statements import denied, stated

LETTERS = "ABCDEFGHIJ"

_LETTER = r"(?<![A-Za-z0-9'’])([A-J])(?![A-Za-z0-9'’+*/=^])"
_GOES_ON = r"(?!\)? ?\?| (?!instead|rather|because|since|with|as |not )[a-z])"
_SAYS = re.compile(
    r"\b(?:answer|ans|option|choice)\b[ \t]{0,3}(?:is|are|(?:will|should|must|would) be)?[ \t]{0,3}"
    rf"(?:option|choice)?[\s:=,.\-–—>(\[*]{{0,8}}{_LETTER}{_GOES_ON}",
    re.IGNORECASE,
)
_SAID = re.compile(
    rf"{_LETTER}\)? (?:remains|is left|(?:is|was|must be) (?:the |our )?"
    r"(?:correct|right|true|answer|best|better|only)|it is\b)",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?i:so|therefore|thus|hence|by elimination|leaves|leaving|left is|choose|pick|select|"
    r"go(?:ing)? with|it is|it's|no|wait|actually|correct:|probably|likely)"
    r"[, ]{0,2}(?:only |wait,? )?(?:(?:it is|it's|it must be|I choose|I pick) )?"
    rf"(?:option |choice )?\(?{_LETTER}\)?(?=[.!,;]?\s|[.!]?$){_GOES_ON}"
)
_CORRECTS = re.compile(
    r"\b[Nn]ot (?:option |choice )?\(?[A-J]\)?,? but (?:rather )?(?:option |choice )?\(?"
    rf"{_LETTER}"
)
_LONE = re.compile(rf"\n[ \t(\[*]{{0,4}}(?:{_LETTER}|([a-j])(?=\)))[ \t)\].*]{{0,4}}$")

# The letter first, then reasons; a list of the options is none.
_OPENS = re.compile(
    rf"\A\n[(\[]?{_LETTER}(?:[)\]]?[).:,](?!.*(?:\s|\()[A-J][)\].]\s)\s(?!\(?[A-J]\b)|[)\].]{{0,2}}\n)",
    re.DOTALL,
)
_LISTED = re.compile(r"(?<![A-Za-z0-9])([A-J])[)\].:] ")
_WITH_TEXT = re.compile(r"[(\[]?([A-J])[)\]]?[,.: -]{1,3}(.{1,200})")
_STATEMENTS = (_OPENS, _SAYS, _SAID, _CONCLUDES, _CORRECTS, _LONE)


def correct(completion: str, answer: str, options: Sequence[str]) -> bool:
    """Whether the completion chooses the option whose letter is `answer`."""
    return chosen(completion, options) == answer


def extract(completion: str) -> str | None:
    """The letter that a text chooses, for voting; None where it chooses none."""
    return chosen(completion, ())


def chosen(text: str, options: Sequence[str]) -> str | None:
    """The letter of the option that a text chooses; None if it chooses none, or several."""
    letters = LETTERS[: len(options)] if options else LETTERS
    text = ascii_digits(text)
    marked = "\\boxed" in text or ("<answer>" in text and "</answer>" in text)
    named = in_json(text[-TAIL:])
    if marked or named:
        given = (final_answer(text) if marked else named) or ""
        return _option(stated(given) if len(given) <= LIMIT else "", letters, options)
    tail = "\n" + text[-TAIL:].rstrip().replace("**", "")
    statements = [match for pattern in _STATEMENTS for match in pattern.finditer(tail)]
    if statements:
        last = max(statements, key=lambda match: match.start(match.lastindex or 0))
        letter = last[last.lastindex or 0].upper()
        return letter if letter in letters else None
    if len(set(_LISTED.findall(tail))) > 2:
        return None  # a list of the options chooses none of them
    given = final_answer(text) or tail.strip()[:LIMIT]
    return (
        _option(given, letters, options)
        or _option(last_number(tail) or "", "", options)
        or _mentioned(tail, options)
    )


def _mentioned(text: str, options: Sequence[str]) -> str | None:
    """The only option whose words stand in the last sentence, unless they are denied there."""
    *_, sentence = re.split(r"\n|[.!?]\s", text.strip()[-LIMIT:].casefold())
    matches = [
        (letter, match)
        for letter, option in zip(LETTERS, options, strict=False)
        if len(words := option.strip().casefold()) > 2 and not any(map(str.isdigit, words))
        for match in [re.search(rf"(?<!\w){re.escape(words)}(?!\w)", sentence)]
        if match
    ]
    if len(matches) != 1:
        return None
    [(letter, match)] = matches
    return None if denied(sentence[: match.start()], sentence[match.end() :]) else letter


def _option(given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option that a short text names, by its letter or else by what it says."""
    with_text = _WITH_TEXT.fullmatch(given)
    if with_text and with_text[1] in letters:
        own = options[LETTERS.index(with_text[1])] if options else ""
        if own and same_answer(with_text[2], own):
            return with_text[1]
    named = [letter for letter in letters if same_answer(given, letter)]
    if not named:
        named = [
            letter
            for letter, text in zip(LETTERS, options, strict=False)
            if same_answer(given, text)
        ]
    return named[0] if len(named) == 1 else None
