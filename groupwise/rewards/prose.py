"""What the running text of a reply concludes, where no mark says what the answer is.

    "She has 18 marbles. This matches the total of 40."    18
    "So, in the end, seventeen people came."               seventeen people
    "It is 9 or 11, I can't decide."                       nothing

Every pattern is linear, and callers bound the text first.
"""

import re

from groupwise.rewards.notation import prose_characters
from groupwise.rewards.number_words import spelled_number
from groupwise.rewards.quantities import last_number
from groupwise.rewards.statements import denied_in_text

_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?![\s\"')\]*_]))+[.!?]*[\"')\]*_]*")
_AFTER = re.compile(
    r"[\W_]*(?:check|to (?:verify|check)|verification|verify|double-check"
    r"|(?:this|that|it|which)(?: result| answer)? (?:also )?(?:matches|agrees|fits|checks"
    r"|equals the given|is (?:consistent|plausible|reasonable)|makes sense)"
    r"|would you|do you want|shall i|let me know|feel free|i hope|hope this"
    r"|substituting|plugging|indeed|note|remark|remember|for comparison"
    r"|this (?:follows|comes) from|by the way|we can (?:check|verify)|with (?:that|this)"
    r"|if you (?:need|want|have|had)|you can (?:check|verify)|source|reference)\b",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:can(?:no|')t|could(?:n't| not)|impossible to|(?:unable|not able|not possible) to)"
    r" (?:be (?:determined|known|answered)|determine|decide|tell|say|know|help|answer|solve|give)\b"
    r"|\bnot (?:sure|certain)\b|\bI (?:don't|do not) know\b"
    r"|\bneed (?:some )?more information\b|\bnicht (?:bestimmen|sagen)\b|\bne peut pas\b"
    r"|\bno se puede\b|无法确定|不能确定",
    re.IGNORECASE,
)
_HESITATES = re.compile(
    r"\bI (?:really |just |honestly )?(?:can(?:no|')t|am unable to|don't know|do not know)"
    r"(?: (?:decide|tell|say)\b|\W*$)|\bnot (?:sure|certain)\b",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(  # "Without the discount it would have been $80."
    r"[\W_]*(?:(?:note that|of course|but|for (?:example|instance)),? )?"
    r"(?:(?:without|had|if\b.{0,80}\b(?:were|was|had|did|ignored|forgot|counted|included)"
    r"|if\b.{0,80}n't)\b.*\bwould\b"
    r"|[a-z ]{0,30}\b(?:might|may|could|would) (?:say|think|object|argue|claim|guess)\b"
    r"(?!.{0,200}\b(?:but|so)\b.{0,200}[0-9]))",
    re.IGNORECASE | re.DOTALL,
)
_EITHER = re.compile(
    r"\b(?:either|could be|might be)\b[^.]{0,40}[0-9][^.]{0,30}\bor\b[^.]{0,20}[0-9]", re.IGNORECASE
)
_REFUSES = re.compile(
    r"\b(?:can't|cannot|unable to) (?:solve|determine|answer|compute|calculate|work)\b"
    r"[^.]{0,40}\b(?:without|unless)\b",
    re.IGNORECASE,
)
_TOO_LITTLE = re.compile(r"(?:\bnot|n't) (?:\w{1,12} ){0,2}enough information", re.IGNORECASE)
_NO_SOLUTION = re.compile(
    r"\bno (?:real |integer )?solutions?\b(?! (?:other|but|except))", re.IGNORECASE
)
_CLAUSE = re.compile(  # what explains or compares the number before it
    r"(?<!but)(?<!and)[,;]? (?:since|because|given that|ya que|porque|car|parce que|weil|denn"
    r"|perché|poiché|omdat|eftersom)\b.*$"
    r"|(?<=[0-9] )(?P<noun>[a-z]{1,20}) in [0-9]{1,6} [a-z]{1,20}\W{0,5}$"
    r"|, (?:as|which is (?:still |well |just |[$€£]?[0-9.,]{1,12} ?%? ?(?:[a-z]+ )?)?"
    r"(?:below|above|less|more|under|over|within|between))\b.*$"
    r"|,? compared (?:to|with)\b.*$|, (?:whos?e?|of which)\b(?!.*\b(?:leav|so|left)).*$"
    r"| (?:after|before) [a-z]{1,20}ing\b(?!.*(?:=|\b(?:has|have|had|is|are|remain|left|leav))).*$"
    r"|,? when [a-z ]{1,60} in (?:19|20)[0-9]{2}\W{0,5}$"
    r"|,? and [a-z ]{1,40} (?:in|by) (?:[A-Z][a-z]{2,8} )?(?:19|20)[0-9]{2}\W{0,5}$"
    r"| ?\([^()]*\)\W{0,5}$",
    re.IGNORECASE,
)
_RESULT = re.compile(
    r"(?:=|\bequals|\bwhich (?:is|gives|makes)) ?[$€£*]{0,3}"
    r"([0-9][0-9,]{0,15}(?:\.[0-9]{1,9})?)(?![0-9]| ?[\\/·×*^+−-]| [0-9])"
)
_NUMERAL = re.compile(r"(?<![0-9.,^])[0-9][0-9,]{0,15}(?:\.[0-9]{1,9})?(?![0-9])")
_WORD = re.compile(r"\w")
_DIGIT = re.compile(r"[0-9]")
_RATIO_IN_WORDS = re.compile(r"\b([0-9]{1,6}) to ([0-9]{1,6})(?=\W{0,3}$)")
_IS_IN_WORDS = re.compile(
    r"\b(?:is|are|equals|makes|gives|leaves|end(?:s|ing)? up (?:at|with)"
    r"|(?:total|altogether|in all),? [a-z ]{1,20} ha(?:s|ve))"
    r" ([a-z -]{1,60})[.!\s]*$",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"\b([ei])\.([ge])\.", re.IGNORECASE)
_AND_A_HALF = re.compile(r"\b(?:an?|one) (hour|day|week|month|year|mile)s? and a half\b", re.I)
_HOURS_AND_MINUTES = re.compile(r"\b([0-9]{1,4}) hours? and ([0-9]{1,2}) minutes?\b")


def concluded(text: str) -> str | None:
    """The number that a text ends on, with its unit; "no solution"; None where it decides on none.

    Questions, checks and offers behind the answer are passed over, and clauses that give a reason.
    """
    text = _ABBREVIATED.sub(r"\1\2", _AND_A_HALF.sub(r"1.5 \1s", prose_characters(text)))
    text = _HOURS_AND_MINUTES.sub(lambda m: f"{60 * int(m[1]) + int(m[2])} minutes", text)
    sentences = [match[0] for match in _SENTENCE.finditer(text) if _WORD.search(match[0])]
    sentences = [text for text in sentences if not text.rstrip("\"')]*_ ").endswith("?")]
    while len(sentences) > 1 and _AFTER.match(sentences[-1]):
        sentences.pop()
    stated = [text for text in sentences if not is_hypothetical(text)]
    if any(_DIGIT.search(text) for text in stated):
        sentences = stated
    if not sentences or _UNDECIDED.search(sentences[-1]):
        return None
    if _EITHER.search(sentences[-1]) or any(map(_REFUSES.search, sentences)):
        return None
    if _TOO_LITTLE.search(" ".join(sentences[-3:])):
        return None
    if _NO_SOLUTION.search(sentences[-1]):
        return "no solution"
    for sentence in map(_without_clause, reversed(sentences)):
        if "ratio" in text:
            sentence = _RATIO_IN_WORDS.sub(r"\1:\2", sentence)
        said = _IS_IN_WORDS.search(sentence)
        spoken = said[1] if said else "" if _DIGIT.search(sentence) else sentence
        spelled = spelled_number(spoken)
        if spelled is not None:
            before = sentence[: sentence.lower().rfind(spelled.split()[0])]
            return None if denied_in_text(before[-40:], "") else spelled
        if _DIGIT.search(sentence):
            return last_number(_until_result(sentence, text.rpartition(sentence)[0]))
    return None


def _until_result(sentence: str, before: str) -> str:
    """The sentence up to the last result before it, where what follows was given earlier.

    "4 * 6 = 24 eggs. So he needs 24 eggs for 4 cakes." The 4 is no answer: the text had it before
    it had its last result, which the sentence repeats.
    """
    results = list(_RESULT.finditer(before))
    numbers = list(_NUMERAL.finditer(sentence))
    if not results or not numbers:
        return sentence
    given = {_digits(match[0]) for match in _NUMERAL.finditer(before, 0, results[-1].start())}
    result = _digits(results[-1][1])
    places = [n for n, match in enumerate(numbers) if _digits(match[0]) == result]
    if not places or places[-1] == len(numbers) - 1 or "=" in sentence[numbers[places[-1]].end() :]:
        return sentence
    behind = numbers[places[-1] + 1 :]
    if not all(_digits(match[0]) in given for match in behind):
        return sentence
    return sentence[: behind[0].start()]


def _digits(number: str) -> str:
    number = number.replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def _without_clause(sentence: str) -> str:
    clause = _CLAUSE.search(sentence)
    before = sentence[: clause.start()] + (clause["noun"] or "") if clause else ""
    return before if _DIGIT.search(before) else sentence


def without_hypotheses(text: str) -> str:
    """A text without the sentences that say what would be if things were otherwise."""
    return _SENTENCE.sub(lambda match: "" if is_hypothetical(match[0]) else match[0], text)


def is_hypothetical(sentence: str) -> bool:
    """Whether it says what would be if things were otherwise."""
    return _HYPOTHETICAL.match(sentence) is not None


def hesitates(text: str) -> bool:
    """Whether the last sentence says that its writer has not decided."""
    sentences = [match[0] for match in _SENTENCE.finditer(text) if match[0].strip()]
    return bool(sentences and _HESITATES.search(sentences[-1]))
