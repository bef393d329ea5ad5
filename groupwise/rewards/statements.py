"""What a short answer states when it says more than the answer: corrections, notes, denials.

    "not 31 but 33" states 33, "42 (confidence 0.9)" states 42, "more than 42" does not state 42.

Every pattern is linear. What is stated is looked for in at most notation.LIMIT characters.
"""

import re

_CORRECTION = re.compile(
    r"\b(?i:not|isn't) (?P<no>[^,;]{1,60}?)(?:(?:, [^,;]{1,60},|,)? but (?:rather )?"
    r"|[,;.] (?i:it is|it's) )(?P<yes>.+)|^(?P<first>.{1,60}?)[,.?!…;-]{1,4} ?(?i:no|wait|sorry"
    r"|I mean|actually|rather|correction)\b[,:;. -]*(?P<then>[^a-z].*)",
    re.DOTALL,
)
_AFTERTHOUGHT = re.compile(
    r",? ?\(?\b(?:and not|y no|und nicht|et non(?: pas)?|not|instead of|rather than) "
    r"(?:the |an? )?\(?(?:[A-Z]\) ?)?[A-Z$€£-]?[0-9.,]{0,20}%?(?: [a-z]{1,20})?\)?[.)]*$"
    r"|, (?:and )?not (?:the |an? )?[a-z]{1,20}[.)]*$"
)
_NOTE = re.compile(
    r"[,;]?\s(?:\((?:[=≈~]|\\approx\b)[^()]{1,80}(?:\([^()]{0,40}\)[^()]{0,40})?\)|\((?!and\b"
    r"|[^()]*\b(?:or|mod|base|maybe|perhaps|possibly)\b)(?:[0-9.,%]{1,12} )?[A-Za-z][^()]{0,80}\)"
    r"|\((?:19|20)[0-9]{2}\)|\[[A-Za-z. ]{0,12}[0-9]{1,3}\]|(?:as (?:of|computed|shown|found|in)"
    r"|according to|compared (?:to|with)|confidence|see|cf\.?|\|)(?: |:).{0,120}|(?:i\.e\b|that is"
    r"|which (?:is|leaves|means|makes)|(?:or )?equivalently)(?!.{0,80}\b(?:not|wrong"
    r"|incorrect)\b).{0,80}|with .{0,20}\b(?:confidence|certainty)\b.{0,120}|I(?: (?:think|believe"
    r"|guess|am)|'m)\b(?!.*\bnot\b).{0,80})[.\s]*$",
    re.IGNORECASE,
)
_IN_YEAR = re.compile(r" in (?:19|20)[0-9]{2}[.\s]*$")
_NUMBER = re.compile(r"[0-9][0-9.,/%]*")
_BOUND = (
    r"\b(?:(?:more|less|[a-z]{2,10}er) than|at (?:least|most)"
    r"|up to|exceed(?:s|ed|ing)?|except|(?:capped|limited) (?:at|to)|unlike|almost|nearly|over"
    r"|under|above|below|beyond|neither|nor|twice|double|triple"
    r"|rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|(?:half|third|quarter|root|square"
    r"|cube|opposite|reciprocal|negative) of|(?:anything|everything|any|all|everyone"
    r"|every [a-z]{1,15}) but|never|between [0-9.,]{1,20} and|[0-9] or)"
    r"(?: the| a| an| for| rs\.?)? ?[$€£₹]?$"
    r"|(?:(?:^|\s)[<>≤≥≠]|\\(?:[lgn]e|[lg]t)q?) ?$|\b(?:(?:mehr|weniger) als|mindestens|höchstens"
    r"|(?:moins|plus) de|au (?:moins|plus)|(?:menos|más) de|al menos"
    r"|no es|non è|não é|n'est pas|ist nicht) ?$"
)
_BOUND_BEFORE = re.compile(rf"{_BOUND}|\b(?:never|not|cannot|[a-z]+n't)\b", re.IGNORECASE)
_BOUND_IN_TEXT = re.compile(_BOUND, re.IGNORECASE)
_DENIED_AFTER = re.compile(
    r"\b(?:wrong|incorrect|false|impossible|out of the question|not|never|cannot|[a-z]+n't"
    r"|at (?:least|most)|or (?:more|less|fewer|so))\b|^ ?\+(?: |$)",
    re.IGNORECASE,
)
_DENIED_IN_TEXT = re.compile(
    r"^ or (?:more|less|fewer)\b|^[$)\]]{0,2}[a-z ]{0,20} (?:cannot|can't|could not"
    r"|couldn't) be (?:the )?(?:right|correct|answer|solution|result|true)\b"
    r"|^[$)\]]{0,2}[a-z ]{0,20} (?:is|are|was)(?:(?:n't| not| never) (?:the |a )?(?:right|correct"
    r"|answer|solution|result)\b| (?:definitely |certainly |clearly |simply |just )?(?:the "
    r"|a )?(?:wrong|incorrect|false|impossible|too (?:large|small|big|high|low|much|many|few))\b)",
    re.IGNORECASE,
)

NOT_THAT = re.compile(  # behind such words nothing is concluded: "earlier than Monday"
    r"\b(?:than|ahead of|instead of|after|before|from|since|not|nor|or|and|isn't|except|but|never"
    r"|neither|cannot be|can't be|unlike)(?: the| a| an)? *$"
    r"|\bnever\b[^,;]{0,20}$|\b(?:if|whether)\b[^,;]{0,60}$"
)
_REASON = re.compile(r"(?<=[0-9%])(?:: (?=[a-z])|,? (?:because|since) ).*$", re.DOTALL)


def stated(text: str) -> str:
    """The part that is the answer: stated("33, not 31") == "33"."""
    text = _REASON.sub("", text)
    correction = _CORRECTION.search(text)
    if correction is not None:
        return (correction["yes"] or correction["then"]).strip()
    year = _IN_YEAR.search(text)
    if year is not None and len(_NUMBER.findall(text[: year.start()])) == 1:
        text = text[: year.start()]
    text = without_afterthought(text)
    brief = _NOTE.sub("", text).strip()
    return brief if brief and (_NUMBER.search(brief) or not _NUMBER.search(text)) else text


def denied(before: str, after: str) -> bool:
    """Whether the words around a number say that it is not the answer: a bound, or wrong."""
    return bool(_BOUND_BEFORE.search(before) or _DENIED_AFTER.search(after))


def without_afterthought(text: str) -> str:
    """without_afterthought("it is 33, not 31") is "it is 33"."""
    return _AFTERTHOUGHT.sub("", text)


def denied_in_text(before: str, after: str) -> bool:
    """The same of a number in running text, where a "not" may be about something else."""
    return bool(_BOUND_IN_TEXT.search(before) or _DENIED_IN_TEXT.search(after))
