"""What the words around an answer do to it: corrections, notes and denials.

    "not 31 but 33" states 33, "42 (confidence 0.9)" states 42, "more than 42" does not state 42.

Every pattern is linear, and callers bound the text first.
"""

import re

NOT = r"(?:not|never|cannot|[a-z]+n't)"
WRONG = r"(?:wrong|incorrect|false|impossible|out of the question)"
_BOUND = (
    r"\b(?:(?:more|less|[a-z]{2,10}er) than|at (?:least|most)|up to|except|unlike|almost|nearly"
    r"|over|under|above|below|beyond|neither|nor|never|(?:is|are|was|be) not|isn't"
    r"|twice|double|triple|exceed(?:s|ed|ing)?"
    r"|(?:capped|limited) (?:at|to)|rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|[0-9] or"
    r"|(?:half|third|quarter|root|square|cube|opposite|reciprocal|negative) of|between [0-9.,]+ and"
    r"|(?:anything|everything|any|all|everyone|every [a-z]{1,15}) but)"
    r"(?: the| an?| his| her| its| their| for| rs\.?)? ?[$€£₹]?$"
    r"|(?:(?:^|\s)[<>≤≥≠]|\\(?:[lgn]e|[lg]t)q?) ?$"
    r"|\b(?:(?:mehr|weniger) als|mindestens|höchstens|(?:moins|plus|menos|más) de|no es) ?$"
)
_BOUND_IN_TEXT = re.compile(_BOUND, re.IGNORECASE)
_DENIED_BEFORE = re.compile(rf"{_BOUND}|\b{NOT}\b", re.IGNORECASE)
_DENIED_AFTER = re.compile(
    rf"\b(?:{WRONG}|{NOT}|at (?:least|most)|or (?:more|less|fewer|so))\b|^ ?\+(?: |$)",
    re.IGNORECASE,
)
_DENIED_AFTER_IN_TEXT = re.compile(
    r"^ or (?:more|less|fewer)\b|^[$)\]]{0,2}[a-z ]{0,20} "
    rf"(?:(?:is|are|was) (?:the |a )?(?:{WRONG}|too (?:large|small|big|high|low|much|many|few))"
    r"|(?:(?:is|are|was|can|could)(?:n't| not)|cannot|can't)(?: be)? (?:the |a )?"
    r"(?:right|correct|true|answer|solution|result))\b",
    re.IGNORECASE,
)
_CORRECTION = re.compile(
    r"\b(?i:not|isn't) [^,;]{1,60}?(?:(?:, [^,;]{1,60},|,)? but (?:rather )?"
    r"|[,;.] (?i:it is|it's) )(?P<yes>.+)|^.{1,60}?[,.?!…;-]{1,4} ?(?i:no|wait|sorry"
    r"|I mean|actually|rather|correction)\b[,:;. -]*(?P<then>[^a-z].*)",
    re.DOTALL,
)
_AFTERTHOUGHT = re.compile(
    r",? ?\(?\b(?:and not|not|instead of|rather than|(?:(?:et|e|y|und) )?"
    r"(?:(?:non|et) pas|non|nicht|não|(?<=[,y] )no(?= [$€]?[0-9]))|а не) (?:the |an? )?"
    r"\(?(?:[A-Z]\) ?)?(?:[A-Z$€£-]?[0-9.,]{0,20}%?(?: \w{1,20})?|\$[^$\n]{1,60}\$)\)?[.)\s]*$"
    r"|[,，、]? ?而?(?:不是|ではなく)[0-9][0-9.,]{0,20}[^0-9]{0,6}$"
    r"|, not (?:the |an? )?[a-z]{1,20}[.)]*$"
)
_NOTE = re.compile(  # in brackets, a reference, the same in other words, how sure one is
    r"[,;]?\s(?:\((?:[=≈~]|(?![^()]*\b(?:and|or|mod|base|maybe|perhaps|possibly)\b)"
    r"(?:[0-9.,%]{1,12} )?[A-Za-z])[^()]{0,80}\)|\[[A-Za-z. ]{0,12}[0-9]{1,3}\]"
    r"|(?:as (?:of|computed|shown|found|in)|according to|compared (?:to|with)|see|\|) .{0,120}"
    r"|(?:i\.e\b|that is|which (?:is|leaves|means|makes|each|every|s?he|they))"
    rf"(?!.{{0,80}}\b(?:not|{WRONG})\b).{{0,80}}"
    r"|with .{0,20}\b(?:confidence|certainty)\b.{0,120}"
    r"|I(?: (?:think|believe|guess|am)|'m)\b(?!.*\bnot\b).{0,80})[.\s]*$",
    re.IGNORECASE,
)
_IN_YEAR = re.compile(r" in (?:19|20)[0-9]{2}[.\s]*$")
_REASON = re.compile(r"(?<=[0-9%])(?:: (?=[a-z])|,? (?:because|since) ).*$", re.DOTALL)
_NUMBER = re.compile(r"[0-9][0-9.,/%]*")

NOT_THAT = re.compile(  # behind such words nothing is concluded: "earlier than Monday"
    rf"\b(?:than|ahead of|instead of|after|before|from|since|nor|or|and|except|but|neither|unlike"
    rf"|{NOT}(?: be)?)(?: the| a| an)? *$|\bnever\b[^,;]{{0,20}}$|\b(?:if|whether)\b[^,;]{{0,60}}$"
)


def stated(text: str) -> str:
    """The part that is the answer: stated("33, not 31") == "33"."""
    text = _REASON.sub("", text)
    if (correction := _CORRECTION.search(text)) is not None:
        return (correction["yes"] or correction["then"]).strip()
    year = _IN_YEAR.search(text)
    if year is not None and len(_NUMBER.findall(text[: year.start()])) == 1:
        text = text[: year.start()]
    text = without_afterthought(text)
    brief = _NOTE.sub("", text).strip()
    return brief if brief and (_NUMBER.search(brief) or not _NUMBER.search(text)) else text


def without_afterthought(text: str) -> str:
    """without_afterthought("it is 33, not 31") is "it is 33"."""
    return _AFTERTHOUGHT.sub("", text)


def denied(before: str, after: str) -> bool:
    """Whether the words around a number say that it is not the answer: a bound, or wrong."""
    return bool(_DENIED_BEFORE.search(before) or _DENIED_AFTER.search(after))


def denied_in_text(before: str, after: str) -> bool:
    """The same of a number in running text, where a "not" may be about something else."""
    return bool(_BOUND_IN_TEXT.search(before) or _DENIED_AFTER_IN_TEXT.search(after))
