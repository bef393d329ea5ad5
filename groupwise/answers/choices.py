"""Multiple choice: which option an answer chooses.

The prompt asks for the letter in <answer> tags. Also accepted: the letter with its option's text,
that text alone where exactly one option has it, and, without tags, the last place where the text
says what the answer is. Two different letters are no answer: the writer has not decided.
"""

import re
from collections.abc import Sequence

from groupwise.answers.final import TAIL, final_answer, in_json, same_answer
from groupwise.answers.notation import LIMIT, prose_characters
from groupwise.answers.prose import concluded, with_ratio_sign
from groupwise.answers.quantities import is_rounded, read_quantity
from groupwise.answers.replies import reply
from groupwise.answers.sentences import without_checks, without_hypotheses
from groupwise.answers.statements import (
    NOT,
    NOT_THAT,
    WRONG,
    denied,
    stated,
    without_afterthought,
)

LETTERS = "ABCDEFGHIJ"

# How a text says which letter it chooses; the last place where it does counts.
_LETTER = r"(?<![A-Za-z0-9'’])([A-J])(?![A-Za-z0-9'’+*/=^]| =|\.[a-z])"
_NAMED = rf"(?:(?:the )?(?:option|choice|letter):? )?\(?{_LETTER}"
_GOES_ON = (
    r"(?!\)? ?\?|\)?, \(?[A-J]\b"
    r"| (?!instead|rather|because|since|with|as |not |here[.!]|over \(?[A-J]\b|satisfies|works"
    r"|fits)[a-z])"
)
_OPENS = re.compile(  # the letter first, then reasons; a list of the options is none
    rf"\A\n[(\[]?{_LETTER}(?:[)\]]?[).:,](?!.*(?:\s|\()[A-J][)\].:]\s)\s(?!\(?[A-J]\b)"
    r"|[)\].]{0,2}\n)",
    re.DOTALL,
)
_SAYS = re.compile(
    r"(?:(?<![0-9%] in )(?<!\bof )(?<!\bthan )(?<!\bnot )\b(?:answer|ans|lösung|solution"
    r"|option|choice|pick|(?:right|correct) one|antwort|antwoord|réponse|respuesta|opción|risposta"
    r"|resposta|alternativa|gabarito|odpowiedź|jawaban|cevap|svar|đáp án)\b"
    r"|الإجابة|答案|答え|回答|正解|选项?|選|정답|ответ)(?:, [^,.?!\n]{1,40},(?= ))?[ \t:]{0,3}"
    r"(?:(?:correc?ta|corretta|correcte|giusta|esatta|richtige|certa)\b[ \t]?)?(?:is|are|lautet"
    r"|(?:will|should|must|would) be|ist|est|es|è|é|是|は|은)?[ \t]{0,3}"
    r"(?:(?:la|a|el|o) )?(?:opción |opzione |opção |alternativa |inciso |buchstabe )?"
    r"(?:letter |letra |lettera |lettre )?"
    rf"(?:option|choice)?[\s:=,.\-–—>→(\[*]{{0,8}}{_LETTER}{_GOES_ON}",
    re.IGNORECASE,
)
_SAID = re.compile(
    rf"{_LETTER}\)? (?:remains|survives|is left|must be it\b|rather than|it is\b"
    r"|(?:does|fits|works|matches|holds)[.!]?$"
    r"|(?:is|was|(?:must|has to|turns out to) be|ist|est|es)"
    r" (?:(?:in fact|indeed|thus|(?!hard|near|part|bare|scarce)\w{2,10}ly) ){0,2}(?:the |our |my )?"
    r"(?:correct|right|true|answer|best|better|only|confirmed|richtig|what I (?:get|choose)))"
    rf"|{_LETTER}[」』\"']?(?:が(?:正解|答え)|是正确)",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"(?:\b(?i:so|therefore|thus|hence|by elimination|leaves|leaving|left (?:is|with)|choosing"
    r"|choose|chose|pick(?:ed|ing)?|select(?:ed|ing)?|settled? on|mark|tick|went with"
    r"|go(?:ing)? (?:with|for)|mak(?:es|ing) it"
    r"|(?:points?|leads?(?: us)?|corresponds?|closest|brings us) to"
    r"|definitely|certainly|I'd say|guess|correction:|it is|it's|(?:that|which) is|that's|only|no"
    r"|wait|it (?:has to|must|should) be|actually|correct(?: is|:)|I meant?|probably|likely"
    r"|I (?:get|got|take)|(?:fits|works|matches|first|second|third|fourth|fifth|last|it)(?=: )"
    r")[,: ]{0,2}|(?<=\w)(?<!not):? (?=\([A-J]\)\.?\Z)|(?:→|->|=>|⇒) ?)(?:only |wait,? |I choose )?"
    rf"{_NAMED}\)?(?=[.!,;:]?\s|[.!]?$){_GOES_ON}"
)
_CORRECTS = re.compile(  # not A but B; nothing but B; A or B? B; all but B are wrong
    rf"(?:\b(?:[Nn]ot|isn't|[Nn]icht|[Nn]on) (?:option |choice )?\(?[A-J]\)?(?:, [^,;.]{{1,60}},"
    r"|,)? (?:but|sondern|ma) (?:rather )?"
    r"|(?:\b[Nn]othing|n(?:o|')t be anything) (?:but|other than|except) )"
    rf"{_NAMED}|(?:\b[Nn]ot \(?[A-J]\)?,|[A-J]\)?\?|[.!]) (?:[Ii]t(?:'s| is) |[Yy]es, )?"
    rf"{_NAMED}\)?[.!]?$"
    rf"|\b(?:[Aa]ll|[Ee]very)[a-z ]{{0,20}} (?:but|except|other than) {_NAMED}\)? (?:fail|(?:is|are"
    rf"|can be) (?:{WRONG}|\w+ out))|\b[Nn]o[a-z ]{{1,20}} (?:but|except|other than) {_NAMED}\b"
)
_LONE = re.compile(  # on a line of its own, with a remark in brackets or without
    rf"(?<!,)\n[ \t(\[*>]{{0,4}}(?:{_LETTER}(?: \1\b){{0,20}}|([a-j])(?=\)))[ \t)\].*]{{0,4}}"
    r"(?:[(\[](?:confidence|certainty|see|cf|not|(?:19|20)[0-9]{2})\b[^()\[\]\n]{0,120}[)\]]\.?)?$"
)
_STATEMENTS = (_OPENS, _SAYS, _SAID, _CONCLUDES, _CORRECTS, _LONE)

# Where it does not choose what it names.
_TENTATIVE = re.compile(
    r"\b(?:(?:could|might|may|eliminate|exclude|rule out|avoid|n?either|nor|refuse to"
    rf"|{NOT})(?: [a-z]{{2,8}})?|(?:(?<!no )(?<!a )(?<!not )(?<!n't )doubt|unlikely|hard to see"
    rf"|{NOT} (?:\w{{1,8}} )?(?:think|believe|convinced))(?: [a-z]{{2,8}}){{0,3}}) $",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    rf"[^.!?\n]{{0,60}}[.!?,;]\s{{1,2}}[Tt]h(?:at|is) (?:is|was) (?:{WRONG}|not)\b"
    r"|[\"'”)]{0,2} is what (?:most|many|some|people|you|they|one)\b"
    rf"|(?:(?:is|was) (?:not|{WRONG})|(?:is|was)n't|(?:cannot|can't) be)\b"
)
_DENIES = re.compile(rf"(?:{NOT} be|isn't|is not|doubt(?: that)?) {_NAMED}")
_HESITATES = re.compile(
    r"\b(?i:I (?:\w+ )?(?:can(?:no|')t|am unable to|don't know|do not know)"
    r"(?: (?:decide|tell|say)\b|\W*$)|not (?:sure|certain)\b"
    r"|\b(?-i:[A-J])\)? (?:are|is|seems?|looks?) (?:both |all )?(?:just as|equally)"
    r" (?:likely|possible|plausible)\b)"
    r"|\b(?:one of|either|between) (?:(?:options?|choices?) )?\(?[A-J]\)?,? [^.!?\n]{0,20}"
    r"\b(?:and|or) \(?[A-J]\)?[.!]?$"
)
_LISTED = re.compile(r"(?<![A-Za-z0-9])([A-J])[)\].:] ")

# An option by its place, a tick, its words.
_PLACES = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
_PLACES |= {"second-to-last": -2, "one": 0, "two": 1, "three": 2, "four": 3, "five": 4}
_PLACES |= {str(place + 1): place for place in range(5)}
_BY_PLACE = re.compile(
    r"\b(?P<ordinal>first|second-to-last|second|third|middle|fourth|fifth|last) "
    r"(?:option|choice|answer|one(?=[.!]?$| is (?:the )?(?:right|correct)))\b"
    rf"(?! (?:is|was) (?:not|{WRONG})\b)"
    r"|\b(?:option|choice) (?P<number>one|two|three|four|five|[1-5](?=[.!]?$))\b",
    re.IGNORECASE,
)
_SEVERAL = r"\(?\b[A-J]\b\)?(?:(?:,? (?:and|or|nor|&)|,) \(?[A-J]\b\)?){0,9}"
_JUDGED = re.compile(  # A: wrong; B, C and D do not fit; rule out B and C; E ✅
    rf"(?:rule out|eliminate|exclude|discard|{NOT} be|isn't|[Nn]either) (?P<excluded>{_SEVERAL})"
    rf"|(?P<judged>(?<!['’]){_SEVERAL})[^A-J\n✅✓✔❌✗✘]{{0,60}}?(?:[❌✗✘]|\b(?i:{WRONG}|no|fails?"
    rf"|{NOT} (?:\w+ )?(?:correct|right|true|work|fit|match)|(?:too|still) [a-z]+"
    r"|ruled out|eliminated|excluded|discarded)\b"
    r"|(?P<right>[✅✓✔]|\b(?i:right|correct|true|yes|works|fits|matches)\b))"
)
_TICKED = re.compile(
    r"\[[xX✓✔]\] ?\(?([A-J])(?![A-Za-z0-9])|\n[(\[]?([A-J])[)\].:][^\n]{0,80}?(?:<-|←|⬅)"
)
_IN_LATEX = re.compile(
    r"\$?\\(?:text|mathrm|mathbf)[a-z]{0,2}\{([^{}]{1,9})\}\$?|\$([A-J])\$|\\(?:[;,:!]|q?quad)"
)
_EMPHASIS = re.compile(r"(?<![\w*])([*_])(?=[A-Za-z(])([^*_\n]{1,60})(?<! )\1(?![\w*])")
_OVER = re.compile(r"[0-9]/[0-9]")
_ITEM = re.compile(r"\W{0,6}([A-J])[)\].:]{1,2}\s")
_TO_ITS_TEXT = re.compile(r"\A[\s).:,(=–—-]{0,6}(?:which is )?")
_OWN_LETTER = re.compile(r"^[A-J]\) ?")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SMALL = ("a", "an", "the", "of")
_OPERATORS = [[sign] for sign in "+*/^-.,"]


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
    tail = _EMPHASIS.sub(r"\2", re.sub(r"\*{2,}|__", "", _without_latex(text[-TAIL:].strip())))
    tail = _without_list(tail, options)
    if ticked := [one or other for one, other in _TICKED.findall(tail)]:
        return ticked[0] if len(ticked) == 1 and ticked[0] in letters else None
    if _HESITATES.search(_last_sentence(tail).rpartition(", but ")[2]):
        return None
    tail = "\n" + without_checks(without_hypotheses(tail)).strip(" \n✅✓✔")
    denied_at = {match[1]: match.start(1) for match in _DENIES.finditer(tail)}
    if (said := _said(tail)) is not None:
        at, letter = said
        if len(set(_LISTED.findall(tail[at:].partition("\n")[0]))) > 2:
            return None  # a list of the options
        if _is_another(letter, tail[at + 1 :], options):
            return None
        return letter if letter in letters and denied_at.get(letter, -1) < at else None
    if (judged := _by_verdicts(tail, letters)) is not None:
        return judged
    if (place := _by_place(tail, len(options))) is not None:
        return LETTERS[place]
    if len(set(_LISTED.findall(tail))) > 2:
        return None  # a list of the options chooses none of them
    last = tail.rstrip().rpartition("\n")[2][:LIMIT]  # B) 500
    given = last if _ITEM.match(last) else final_answer(text) or _last_sentence(last)
    by_value = _by_value(tail, given, letters, options)
    return None if by_value in denied_at else by_value


def _said(tail: str) -> tuple[int, str] | None:
    """The last letter that a text says it chooses, and where."""
    return max(
        (
            (match.start(match.lastindex or 0), match[match.lastindex or 0].upper())
            for pattern in _STATEMENTS
            for match in pattern.finditer(tail)
            if not _TAKEN_BACK.match(tail, match.end())
            and not _TENTATIVE.search(tail[max(match.start() - 40, 0) : match.start()])
        ),
        default=None,
    )


def _by_verdicts(tail: str, letters: str) -> str | None:
    """The only option that is said to be right among others, or that is not said to be wrong."""
    verdicts = {
        letter: bool(match["right"])
        for match in _JUDGED.finditer(tail)
        for letter in re.findall(r"\b[A-J]\b", match["excluded"] or match["judged"])
    }
    right = [letter for letter in letters if verdicts.get(letter)]
    left = right or [letter for letter in letters if letter not in verdicts]
    return left[0] if len(left) == 1 and len(verdicts) > 1 else None


def _is_another(letter: str, after: str, options: Sequence[str]) -> bool:
    """Whether a letter is followed by the text of another option: "B) 54 km", where that is C."""
    text = re.split(r"\n|[.!?](?:\s|$)", _TO_ITS_TEXT.sub("", after[:LIMIT]))[0]
    said = _tokens(text.casefold().rstrip(" )*"))
    own = dict(zip(LETTERS, (_tokens(option.casefold()) for option in options), strict=False))
    other = said and said in own.values()
    return bool(other) and _place(own.get(letter, []), said, any_order=False) is None


def _by_value(tail: str, given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option whose words or number a text without a letter ends on."""
    sentence = prose_characters(_last_sentence(tail.strip()[-LIMIT:].casefold()))
    sentence = with_ratio_sign(without_afterthought(sentence))
    if (in_words := _in_words(sentence, options)) is not None:
        return in_words
    return _option(given, letters, options) or _option(concluded(tail) or "", "", options)


def _by_place(text: str, count: int) -> int | None:
    """Of "the second option" in the last sentence, the last such words: 1."""
    said = list(_BY_PLACE.finditer(_last_sentence(text.strip())))
    if not said or not count:
        return None
    name = (said[-1]["ordinal"] or said[-1]["number"]).lower()
    place = count // 2 if name == "middle" else _PLACES[name]
    return place % count if -count <= place < count else None


def _without_latex(text: str) -> str:
    return _IN_LATEX.sub(lambda match: match[1] or match[2] or "", text)


def _without_list(text: str, options: Sequence[str]) -> str:
    """A text without the lines that repeat all options, where something follows them."""
    lines = zip(LETTERS, map(re.escape, options), strict=False)
    listed = r"\s*\n".join(rf"\W{{0,4}}{letter}\W{{1,4}}{option}" for letter, option in lines)
    return re.sub(rf"{listed}\W*\n(?=\W*\w)", "", text) if len(options) > 2 else text


def _last_sentence(text: str) -> str:
    return re.split(r"\n|(?<!\b[Rr]s)[.!?]\s", text)[-1]


def _in_words(sentence: str, options: Sequence[str]) -> str | None:
    """The option with whose formula, or words, a sentence ends, in any order: "a 4% loss" is "Loss
    of 4%"; else the only one whose words stand in it, and are not denied there."""
    said = _tokens(sentence.rstrip(" .*$\"'”"))
    ends, within = {}, []
    for letter, option in zip(LETTERS, options, strict=False):
        own = _tokens(option.casefold())
        worded, number = any(len(token) > 2 for token in own), read_quantity(option) is not None
        place = _place(own, said, worded)
        if place is None or not 1 < len("".join(own)) < 60 or (number and not worded):
            continue
        before = re.split("[;,]", " ".join(said[:place][-8:]))[-1].rstrip(" \"'")
        after = said[place + len(own) :]
        strictly = number or said[place:][: len(own)] != own
        behind = NOT_THAT.search(before) or (strictly and denied(before, ""))
        if not after and not behind and (worded or said[:place][-1:] not in _OPERATORS):
            ends[letter] = len(own)
        elif worded and not number and not denied(before, " ".join(after).partition(";")[0]):
            within.append(letter)
    if ends:
        return max(ends, key=lambda letter: ends[letter])
    numbers = all(any(map(str.isdigit, text)) for text in (sentence, "".join(options)))
    return within[0] if len(within) == 1 and not numbers else None


def _place(own: list[str], said: list[str], any_order: bool) -> int | None:
    """Where the words of an option last stand among those of a sentence."""
    for place in range(len(said) - len(own), -1, -1):
        window = said[place : place + len(own)]
        if window == own or (any_order and sorted(window) == sorted(own)):
            return place
    return None


def _tokens(text: str) -> list[str]:
    """The words, without articles and the s of plurals, and the signs of a text."""
    tokens = [token for token in _TOKEN.findall(text) if token not in _SMALL]
    return [token.removesuffix("s") if len(token) > 3 else token for token in tokens]


def _option(given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option that a short text names, by its letter or else by what it says."""
    given = _without_latex(given)  # (\text{E})\; 2:3
    texts = dict(zip(LETTERS, options, strict=False))
    named = [letter for letter in letters if same_answer(given, letter)]
    named = named or [letter for letter, text in texts.items() if same_answer(given, text)]
    if not named and "." in given:  # 33.33% rounds 33 1/3%
        named = [
            one for one, text in texts.items() if _OVER.search(text) and is_rounded(text, given)
        ]
    return named[0] if len(named) == 1 else None
