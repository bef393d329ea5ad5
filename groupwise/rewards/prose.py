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
    r"|if you (?:need|want|have|had)|you can (?:check|verify)|source|reference)\b",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:can(?:no|')t|could(?:n't| not)|impossible to|unable to|not possible to)"
    r" (?:be (?:determined|known|answered)|determine|decide|tell|say|know|help|answer|solve)\b"
    r"|\bnot (?:sure|certain|enough information)\b|\bI (?:don't|do not) know\b"
    r"|\bneed (?:some )?more information\b|\bnicht (?:bestimmen|sagen)\b|\bne peut pas\b"
    r"|\bno se puede\b|无法确定|不能确定",
    re.IGNORECASE,
)
_HESITATES = re.compile(
    r"\bI (?:really |just |honestly )?(?:can(?:no|')t|am unable to|don't know|do not know)"
    r"(?: (?:decide|tell|say)\b|\W*$)|\bnot (?:sure|certain)\b",
    re.IGNORECASE,
)
_NO_SOLUTION = re.compile(
    r"\bno (?:real |integer )?solutions?\b(?! (?:other|but|except))", re.IGNORECASE
)
_CLAUSE = re.compile(  # what explains or compares the number before it
    r"(?<!but)(?<!and)[,;]? (?:since|because|ya que|porque|car|parce que|weil|denn)\b.*$"
    r"|, (?:as|which is (?:still |well |just )?"
    r"(?:below|above|less|more|under|over|within|between))\b.*$"
    r"|,? and [a-z ]{1,40} (?:in|by) (?:[A-Z][a-z]{2,8} )?(?:19|20)[0-9]{2}\W{0,5}$"
    r"| ?\([^()]*\)\W{0,5}$",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w")
_DIGIT = re.compile(r"[0-9]")
_RATIO_IN_WORDS = re.compile(r"\b([0-9]{1,6}) to ([0-9]{1,6})(?=\W{0,3}$)")
_IS_IN_WORDS = re.compile(r"\b(?:is|are|equals) ([a-z -]{1,60})[.!\s]*$", re.IGNORECASE)
_AND_A_HALF = re.compile(r"\b(?:an?|one) (hour|day|week|month|year|mile)s? and a half\b", re.I)
_HOURS_AND_MINUTES = re.compile(r"\b([0-9]{1,4}) hours? and ([0-9]{1,2}) minutes?\b")


def concluded(text: str) -> str | None:
    """The number that a text ends on, with its unit; "no solution"; None where it decides on none.

    Questions, checks and offers behind the answer are passed over, and clauses that give a reason.
    """
    text = _AND_A_HALF.sub(r"1.5 \1s", prose_characters(text))
    text = _HOURS_AND_MINUTES.sub(lambda m: f"{60 * int(m[1]) + int(m[2])} minutes", text)
    sentences = [match[0] for match in _SENTENCE.finditer(text) if _WORD.search(match[0])]
    sentences = [text for text in sentences if not text.rstrip("\"')]*_ ").endswith("?")]
    while len(sentences) > 1 and _AFTER.match(sentences[-1]):
        sentences.pop()
    if not sentences or _UNDECIDED.search(sentences[-1]):
        return None
    if "not enough information" in " ".join(sentences[-2:]).lower():
        return None
    if _NO_SOLUTION.search(sentences[-1]):
        return "no solution"
    for sentence in reversed(sentences):
        if "ratio" in text:
            sentence = _RATIO_IN_WORDS.sub(r"\1:\2", sentence)
        said = _IS_IN_WORDS.search(sentence)
        spoken = said[1] if said else "" if _DIGIT.search(sentence) else sentence
        spelled = spelled_number(spoken)
        if spelled is not None:
            before = sentence[: sentence.lower().rfind(spelled.split()[0])]
            return None if denied_in_text(before[-40:], "") else spelled
        if _DIGIT.search(sentence):
            clause = _CLAUSE.search(sentence)
            before = sentence[: clause.start()] if clause else ""
            return last_number(before if _DIGIT.search(before) else sentence)
    return None


def hesitates(text: str) -> bool:
    """Whether the last sentence says that its writer has not decided."""
    sentences = [match[0] for match in _SENTENCE.finditer(text) if match[0].strip()]
    return bool(sentences and _HESITATES.search(sentences[-1]))
