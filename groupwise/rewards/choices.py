"""Multiple choice: which option an answer chooses.

The prompt asks for the letter in <answer> tags. Also accepted: the letter with its option's text,
that text alone where exactly one option has it, and, without tags, the last place where the text
says what the answer is. Two different letters are no answer: the writer has not decided.
"""

import re
from collections.abc import Sequence

from groupwise.rewards.answers import TAIL, final_answer, in_json, same_answer
from groupwise.rewards.notation import LIMIT, prose_characters, reply
from groupwise.rewards.prose import (
    concluded,
    with_ratio_sign,
    without_checks,
    without_hypotheses,
)
from groupwise.rewards.quantities import read_quantity
from groupwise.rewards.statements import NOT_THAT, denied, stated, without_afterthought

LETTERS = "ABCDEFGHIJ"

_LETTER = r"(?<![A-Za-z0-9'’])([A-J])(?![A-Za-z0-9'’+*/=^]| =|\.[a-z])"
_GOES_ON = r"(?!\)? ?\?|\)?, \(?[A-J]\b| (?!instead|rather|because|since|with|as |not )[a-z])"
_SAYS = re.compile(
    r"(?:\b(?:answer|ans|option|choice|pick|(?:right|correct) one|antwort|réponse|respuesta"
    r"|risposta|resposta)\b|答案|答え|回答|正解|选项?|選|정답|ответ)[ \t]{0,3}"
    r"(?:(?:correcta|correcte|giusta|richtige|certa)[ \t])?(?:is|are|(?:will|should|must|would) be"
    r"|ist|est|es|è|é|是|は|은)?[ \t]{0,3}(?:la )?(?:opción |opzione |opção )?"
    rf"(?:option|choice)?[\s:=,.\-–—>→(\[*]{{0,8}}{_LETTER}{_GOES_ON}",
    re.IGNORECASE,
)
_SAID = re.compile(
    rf"{_LETTER}\)? (?:remains|is left|must be it\b|rather than"
    r"|(?:is|was|must be|ist|est|es) (?:the |our |my )?(?:correct|right|true|answer|best|better"
    r"|only|confirmed|richtig)|it is\b|(?:does|fits|works|matches|holds)[.!]?$)"
    rf"|{_LETTER}[」』\"']?(?:が(?:正解|答え)|是正确)",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?i:so|therefore|thus|hence|by elimination|leaves|leaving|left (?:is|with)|choose|pick"
    r"|select|settle on|mark|tick|go(?:ing)? (?:with|for)|definitely|certainly|I'd say|guess"
    r"|correction:|it is|it's|that is|that's|only|it (?:has to|must|should) be|no|wait|actually"
    r"|correct:|I meant?|probably|likely)[,: ]{0,2}(?:only |wait,? )?"
    r"(?:(?:it is|it's|it must be|I choose|I pick) )?"
    rf"(?:option |choice )?\(?{_LETTER}\)?(?=[.!,;:]?\s|[.!]?$){_GOES_ON}"
)
_CORRECTS = re.compile(
    r"(?:\b(?:[Nn]ot|isn't|[Nn]icht|[Nn]on) (?:option |choice )?\(?[A-J]\)?(?:, [^,;.]{1,60},"
    r"|,)? (?:but|sondern|ma) (?:rather )?(?:option |choice )?|\b[Nn]othing (?:but|other than) "
    r"|(?:can't|cannot) be anything (?:but|other than) )\(?"
    rf"{_LETTER}"
)
_ONLY = re.compile(
    rf"\b[Oo]nly (?:option |choice )?\(?{_LETTER}\)? (?:satisfies|works|fits|matches|remains|gives"
    r"|makes|holds)"
    rf"|(?:[Aa]ll|[Ee]very(?:thing| option)) (?:except|but) \(?{_LETTER}\)? (?:can be|is|are) "
    r"(?:ruled out|eliminated|excluded|wrong|incorrect)"
)
_GIVES = re.compile(rf"(?:= ?[^\n=]{{1,20}} \(|(?:→|->|=>|⇒) ?\(?){_LETTER}\)?[.!]?$")  # x = 3 (D)
_JUDGED = re.compile(rf"{_LETTER}[).:] [^\n.:]{{1,60}} is (?:the )?(?:correct|right)\b")
_REPLIES = re.compile(  # A or B? A.
    rf"(?:\b[Nn]ot \(?[A-J]\)?,|[A-J]\)?\?|[.!]) (?:[Ii]t's |[Ii]t is )?\(?{_LETTER}\)?[.!]?$"
)
_LONE = re.compile(
    rf"(?<!,)\n[ \t(\[*]{{0,4}}(?:{_LETTER}(?: \1\b){{0,20}}|([a-j])(?=\)))[ \t)\].*]{{0,4}}"
    r"(?:[(\[](?:confidence|certainty|see|cf|(?:19|20)[0-9]{2})\b[^()\[\]\n]{0,120}[)\]]\.?)?$"
)
_ORDINAL = re.compile(
    r"\b(?:the )?(?P<ordinal>first|second-to-last|second|third|middle|fourth|fifth|last) "
    r"(?:option|choice|answer|one(?=[.!]?$| is (?:the )?(?:right|correct)))\b"
    r"(?! (?:is|was|can't|cannot)(?:n't| not)?"
    r" (?:wrong|incorrect|false|be|correct|right|out)(?<!is correct)(?<!is right))"
    r"|\b(?:option|choice) (?P<number>one|two|three|four|five|[1-5](?=[.!]?$))\b",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"(?:can't be|cannot be|could not be|isn't|is not|doubt(?: that)?) (?:option |choice )?\(?"
    rf"{_LETTER}"
)
_TAKEN_BACK = re.compile(
    r"[^.!?\n]{0,60}[.!?,;]\s{1,2}(?:That|that|This) (?:is|was) (?:incorrect|wrong|not)\b"
    r"|(?:(?:is|was)(?:n't| not| wrong| incorrect)|(?:cannot|can't) be)\b"
)
_PLACES = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
_PLACES |= {"second-to-last": -2, "one": 0, "two": 1, "three": 2, "four": 3, "five": 4}
_PLACES |= {str(place + 1): place for place in range(5)}
_MARKED = re.compile(r"(?<![A-Za-z0-9])([A-J])(?![A-Za-z0-9])[^A-J\n✅✓✔❌✗✘]{0,60}([✅✓✔❌✗✘])")
_TICKED = re.compile(
    r"\[[xX✓✔]\] ?\(?([A-J])(?![A-Za-z0-9])|\n[(\[]?([A-J])[)\].:][^\n]{0,80}?(?:<-|←|⬅)"
)
_TENTATIVE = re.compile(r"\b(?:could|might|may|eliminate|exclude|rule out) (?:\w{1,8} )?$", re.I)
_HESITATES = re.compile(
    r"\b(?i:I (?:really |just |honestly )?(?:can(?:no|')t|am unable to|don't know|do not know)"
    r"(?: (?:decide|tell|say)\b|\W*$)|not (?:sure|certain)\b"
    r"|(?:just as|equally) (?:likely|possible|plausible)\b)"
    r"|\b(?:one of|either|between) (?:(?:options?|choices?) )?\(?[A-J]\)?,? [^.!?\n]{0,20}"
    r"\b(?:and|or) \(?[A-J]\)?[.!]?$"
)
_DISTRACTS = re.compile(  # a sentence about an option that is not meant, or a remark
    r"(?<=[.!?\n])(?![^.!?\n]{0,240}\bbut\b)[^.!?\n]{0,120}\b(?:trap|distractor|decoy|tempting)\b"
    r"[^.!?\n]{0,120}[.!?]"
    r"|(?<=[.!?\n]) ?Note that\b[^\n]*\Z"
)
_BECAUSE = re.compile(r",? (?:because|since) .*$", re.DOTALL)
_OWN_LETTER = re.compile(r"^[A-J]\) ?")
_ALTOGETHER = re.compile(r",? (?:overall|in all|altogether|in total)\W{0,3}$")
_NONE = re.compile(
    r"\bnone of (?:the|these|those)(?: (?!other)[a-z]{3,10})?(?:\Z"
    r"| (?:shows?|match(?:es)?|works?|fits?|equals?|gives?|is|are|has|have) (?!.*\bexcept))",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\*{2,}")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SMALL = ("a", "an", "the", "of")
_OPERATORS = [[sign] for sign in "+*/^-.,"]
_AS_FORMULA = re.compile(r"\$?\\(?:text|mathrm|mathbf)[a-z]{0,2}\{\(?([A-J])\)?\}\$?|\$([A-J])\$")
_IN_LATEX = re.compile(r"\\(?:text|mathrm|mathbf)[a-z]{0,2}\{([^{}]{1,9})\}|\\(?:[;,:!]|q?quad)")

# The letter first, then reasons; a list of the options is none.
_OPENS = re.compile(
    rf"\A\n[(\[]?{_LETTER}(?:[)\]]?[).:,](?!.*(?:\s|\()[A-J][)\].:]\s)\s(?!\(?[A-J]\b)|[)\].]{{0,2}}\n)",
    re.DOTALL,
)
_LISTED = re.compile(r"(?<![A-Za-z0-9])([A-J])[)\].:] ")
_WITH_TEXT = re.compile(r"[(\[]?([A-J])[)\]]?[,.: -]{1,3}(.{1,200})")
_STATEMENTS = (_OPENS, _SAYS, _SAID, _CONCLUDES, _ONLY, _GIVES, _JUDGED, _CORRECTS, _REPLIES, _LONE)


def correct(completion: str, answer: str, options: Sequence[str]) -> bool:
    """Whether the completion chooses the option whose letter is `answer`."""
    return chosen(completion, options) == answer


def extract(completion: str) -> str | None:
    """The letter that a text chooses, for voting; None where it chooses none."""
    return chosen(completion, ())


def chosen(text: str, options: Sequence[str]) -> str | None:
    """The letter of the option that a text chooses; None if it chooses none, or several."""
    letters = LETTERS[: len(options)] if options else LETTERS
    options = [_OWN_LETTER.sub("", option) for option in options]
    text = reply(text)
    marked = "\\boxed" in text or ("<answer>" in text and "</answer>" in text)
    named = in_json(text[-TAIL:])
    if marked or named:
        given = (final_answer(text) if marked else named) or ""
        return _option(stated(given) if len(given) <= LIMIT else "", letters, options)
    tail = _AS_FORMULA.sub(lambda m: m[1] or m[2], text[-TAIL:])
    tail = "\n" + _BOLD.sub("", tail.strip())
    marks, ticked = _MARKED.findall(tail), [one or other for one, other in _TICKED.findall(tail)]
    if len(marks) > 1 or ticked:
        ticked += [letter for letter, mark in marks if mark in "✅✓✔"]
        return ticked[0] if len(ticked) == 1 and ticked[0] in letters else None
    if _HESITATES.search(_last_sentence(tail)):
        return None
    tail = _DISTRACTS.sub("", without_checks(without_hypotheses(tail)))
    tail = "\n" + tail.strip(" \n✅✓✔")
    denied_at = {match[1]: match.start(1) for match in _DENIES.finditer(tail)}
    statements = [
        (match.start(match.lastindex or 0), match[match.lastindex or 0].upper())
        for pattern in _STATEMENTS
        for match in pattern.finditer(tail)
        if not _TAKEN_BACK.match(tail, match.end())
        and not _TENTATIVE.search(tail[max(match.start() - 20, 0) : match.start()])
    ]
    if statements:
        at, letter = max(statements)
        if len(set(_LISTED.findall(tail[at:].partition("\n")[0]))) > 2:
            return None  # a list of the options
        return letter if letter in letters and denied_at.get(letter, -1) < at else None
    if (place := _by_place(tail, len(options))) is not None:
        return LETTERS[place]
    if len(set(_LISTED.findall(tail))) > 2:
        return None  # a list of the options chooses none of them
    if _NONE.search(_last_sentence(tail)):
        none = (x for x, own in zip(letters, options, strict=False) if _NONE.search(own))
        return next(none, None)
    given = final_answer(text) or tail.strip().rpartition("\n")[2][:LIMIT]
    by_value = _by_value(tail, given, letters, options)
    return None if by_value in denied_at else by_value


def _by_value(tail: str, given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option whose words or number a text without a letter ends on."""
    sentence = prose_characters(_last_sentence(tail.strip()[-LIMIT:].casefold()))
    sentence = without_afterthought(_BECAUSE.sub("", sentence))
    sentence = with_ratio_sign(_ALTOGETHER.sub("", sentence))
    if (last := _ending(sentence, options)) is not None:
        return last
    in_words = _mentioned(sentence, options)
    if in_words and not any(map(str.isdigit, sentence)):
        return in_words
    return (
        _option(given, letters, options) or _option(concluded(tail) or "", "", options) or in_words
    )


def _by_place(text: str, count: int) -> int | None:
    """Of "the second option" in the last sentence, the last such words: 1."""
    said = list(_ORDINAL.finditer(_last_sentence(text.strip())))
    if not said or not count:
        return None
    name = (said[-1]["ordinal"] or said[-1]["number"]).lower()
    place = count // 2 if name == "middle" else _PLACES[name]
    return place % count if -count <= place < count else None


def _last_sentence(text: str) -> str:
    return re.split(r"\n|[.!?]\s", text)[-1]


def _ending(sentence: str, options: Sequence[str]) -> str | None:
    """The option that is no number and with whose formula, or words, a sentence ends; of words in
    any order: "a 4% loss" is "Loss of 4%"."""
    longest, last = 1, None
    for letter, option in zip(LETTERS, options, strict=False):
        said, own = _TOKEN.findall(sentence.rstrip(' .*$"”')), _TOKEN.findall(option.casefold())
        if in_words := any(len(token) > 2 for token in own):
            said, own = ([t for t in tokens if t not in _SMALL] for tokens in (said, own))
        before, end, length = said[: -len(own)], said[-len(own) :], len("".join(own))
        reordered = in_words and end != own and sorted(end) == sorted(own)
        in_order = end == own and (in_words or read_quantity(option) is None)
        if not longest < length < 60 or not (reordered or in_order):
            continue
        words = " ".join(before)
        measured = reordered or read_quantity(option) is not None
        denial = NOT_THAT.search(words) or (measured and denied(words[-30:], ""))
        if not denial and (in_words or before[-1:] not in _OPERATORS):
            longest, last = length, letter
    return last


def _mentioned(sentence: str, options: Sequence[str]) -> str | None:
    """The only option whose words stand in a sentence, unless they are denied there."""
    stated = [
        letter
        for letter, words in zip(LETTERS, map(str.casefold, map(str.strip, options)), strict=False)
        if len(words) > 2 and not any(map(str.isdigit, words))
        if (match := re.search(rf"(?<!\w){re.escape(words)}s?(?!\w)", sentence))
        if not denied(
            re.split(r"[;,]", sentence[max(match.start() - 30, 0) : match.start()])[-1],
            sentence[match.end() :].partition(";")[0],
        )
    ]
    return stated[0] if len(stated) == 1 else None


def _option(given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option that a short text names, by its letter or else by what it says."""
    given = _IN_LATEX.sub(r"\1", given)  # (\text{E})\; 2:3
    with_text = _WITH_TEXT.fullmatch(given)
    if with_text and with_text[1] in letters:
        own = options[LETTERS.index(with_text[1])] if options else ""
        said = with_text[2].removeprefix("(").removesuffix(")")
        if own and (same_answer(with_text[2], own) or same_answer(said, own)):
            return with_text[1]
    texts = dict(zip(LETTERS, options, strict=False))
    named = [letter for letter in letters if same_answer(given, letter)]
    named = named or [letter for letter, text in texts.items() if same_answer(given, text)]
    return named[0] if len(named) == 1 else None
