"""The sentences of a reply, and which of them its conclusion stands in.

Passed over are remarks behind the conclusion (checks, comparisons, offers), questions, and what
would be if things were otherwise. A text that does not decide concludes nothing.

Every pattern is linear, and callers bound the text first.
"""

import re

_WORD = re.compile(r"\w")
_DIGIT = re.compile(r"[0-9]")
_AMOUNT = r"[$€£]?[0-9][0-9.,]{0,12}"
_SENTENCE = re.compile(
    r"(?:[^.!?\n]|[.!?](?![\s\"')\]*_$])|(?<=[0-9])!(?= [a-z]))+[.!?]*[\"')\]*_$]*"
)
_ABBREVIATED = re.compile(r"\b([ei])\.([ge])\.|\b(pp?|no|fig|eq|rs)\.(?= ?[0-9])", re.IGNORECASE)
_ASIDE = re.compile(r" \((?:[=≈~]|[A-Za-z]{2,} )[^()]{1,200}\)")
_IN_BRACKETS = re.compile(r"(?<=[.!?\n])[\s*_]{0,8}\([^()]{5,400}\)[\s.*_]{0,8}\Z")
_CHECKS = re.compile(  # how sentences begin that check, compare, refer to or offer something
    r"[\W_]*(?:(?:quick |sanity |double[- ])?check|(?:to )?(?:verify|(?:double[- ])?check)"
    r"|verification|v[ée]rifi[ck]a\w{2,6}|preuve|probe|for (?:instance|example|comparison)"
    rf"|not {_AMOUNT},?(?! but)|see"
    r"|(?:this|that|it|which)(?: result| answer)? (?:also )?(?:matches|agrees|fits|checks|works"
    r"|makes sense|(?:follows|comes) from|is (?:consistent|plausible|reasonable))"
    r"|(?:this|that|it)(?:'s| is) (?:more|less|fewer|[a-z]{2,10}er) than"
    r"|would you|do you want|shall i|let me know|feel free|i hope|hope this"
    r"|if you (?:need|want|have|had)|(?:we|you) can (?:check|verify)|(?:both|it) (?:hold|work)s?"
    r"|(?:substituting|plugging)(?!.*\bwe get\b)|indeed|note|remark|remember|compare|by the way"
    r"|(?:the|this) (?:story|problem|puzzle|exercise)(?=.{1,40}\bin (?:19|20)[0-9]{2}\W*$)"
    r"|these (?:prices|data|figures)(?=.{1,40}\b(?:19|20)[0-9]{2}\W*$)"
    r"|source|(?:for )?reference|works(?! out)|with (?:that|this)"
    r"|(?:I(?:'m| am) [0-9.]{1,5} ?% |my )?(?:confiden|certain|sure)\w*)\b",
    re.IGNORECASE,
)
_CHECKED_BELOW = re.compile(  # a paragraph, or what a colon opens, that checks what is above it
    r"(?:\n[\W_]{0,8}|[.!] [*_]{0,2}(?=[A-Za-z' -]{5,20}:))"
    r"(?:verification|(?:(?:let's|let us|let me|to) )?(?:double[- ])?(?:check|verify)(?:ing)?)\b"
    r"(?!.*(?:\b(?:so|thus|therefore|hence|answer|mistake|wrong|instead|actually)\b|\\boxed)).*\Z",
    re.IGNORECASE | re.DOTALL,
)
_SO = re.compile(r"\b(?:so|thus|therefore|hence)\b.*?(?:[0-9]|\b[A-J]\b)")
_HYPOTHETICAL = re.compile(  # "Without the discount it would have been $80."
    r"[^.!?\n]{0,120}\bwould be\b[^.!?\n]{0,60}\bif\b"
    r"|[\W_]*(?:(?:note that|of course|but),? )?(?:without|had|if\b(?! I had to).{0,80}"
    r"(?:\b(?:were|was|had|did|ignored|forgot|counted|included|meant|instead)\b|n't))"
    r"\b.*(?:\bwould|'d)\b"
    r"|[a-z ]{0,30}\b(?:might|may|could|(?<!I )would) (?:say|think|object|argue)\b"
    r"(?!.{0,200}\b(?:but|so|yet)\b.{0,200}(?:[0-9]|\b(?-i:[A-HJ])\b))",
    re.IGNORECASE | re.DOTALL,
)
_OF_THE_ANSWER = re.compile(  # "Twice the answer is 50.", "My result plus one makes 100."
    r"[^.!?\n]{0,60}\b(?:(?:twice|half|double|triple|times|than|plus|minus|adding \w{1,9} to"
    r"|(?:square|cube|root|half|third|quarter|digits) (?:of|in)) (?:the|my|our) (?:final )?"
    r"(?:answer|result)\b|(?:the|my|our) (?:final )?(?:answer|result) (?:plus|minus|times"
    r"|(?:divided|multiplied|increased|decreased) by)\b)",
    re.IGNORECASE,
)
_AFTER_ALL = re.compile(r"\b(?:but|so)\b.{0,200}[0-9]", re.DOTALL)
_UNDECIDED = re.compile(  # in the last sentence
    r"\b(?:can(?:no|')t|could(?:n't| not)|(?:unable|not able|impossible) to)"
    r" (?:(?:be )?(?:determined?|known?|sure|certain)|decide|tell|say|help|answer|solve|give)\b"
    r"|\bnot (?:sure|certain)\b|\b(?:don't|do not) know\b|\bunclear\b"
    r"|\b(?:exact|precise|actual) [a-z ]{1,30} (?:(?:is|are)(?:n't| not) |(?:is|are) un)known\b"
    r"(?![^0-9]{0,80}[0-9])"
    r"|\b(?:(?:answer|total|number|amount|price|cost|sum|result|value)(?: of(?: the)? [a-z]{1,15})?"
    r" (?:is|becomes|(?:should|must|will) be)|us with|equals|which(?: is| gives)?|and|of|the|by|an?"
    r"|our|their|we|to|that|how|into|then)[ :]*$|[0-9)](?: ?[-+/×·÷=]| \*) ?$"
    r"|\b(?:(?:need|have) to [a-z]{3,12}$|(?:(?:need|have) to|let's|let us|next,? we|now,? we)"
    r" (?:now |then )?(?:find|calculate|compute|determine|work out|look at)\b[^0-9]*$)"
    r"|\A\W*(?:then|next|now|first|after (?:that|this))\b[^0-9.!?]*$"
    r"|无法确定|不能确定|\bnicht (?:bestimmen|sagen)\b|\bne peut pas\b|\bno se puede\b"
    r"|\b(?:either|could be|might be)\b[^.]{0,40}[0-9][^.]{0,30}\bor\b[^.]{0,20}[0-9]"
    rf"| [0-9]{{1,9}} or [0-9]{{1,9}} [a-z]|\bone of {_AMOUNT}(?: [a-z]{{1,12}})? and {_AMOUNT}",
    re.IGNORECASE,
)
_REFUSES = re.compile(  # in any sentence
    r"\b(?:can't|cannot|unable to) (?:solve|determine|answer|compute|calculate|work)\b"
    r"[^.]{0,40}\b(?:without|unless)\b|\b(?:as|just|only|merely|starting|wild) (?:a )?guess\b"
    r"|\bplaceholder\b|\bplease (?:tell me|provide|give me|specify|share)\b"
    r"|\b(?:don't|do not) (?:take|count) (?:it|that|this)\b|\bmore information is needed\b"
    r"|(?:(?:\bnot|n't) (?:\w{1,12} ){0,2}enough|\bneed (?:some )?more) (?:information|details)\b",
    re.IGNORECASE,
)


def concluding(text: str) -> list[str]:
    """The sentences of a text up to its conclusion; none where it does not decide on one."""
    sentences = _sentences(without_checks(_ASIDE.sub("", _ABBREVIATED.sub(r"\1\2\3", text))))
    said = [match[0] for match in sentences if not match[0].rstrip("\"')]*_ ").endswith("?")]
    said = [text for text in said if _AFTER_ALL.search(text) or not is_hypothetical(text)]
    if not said or _UNDECIDED.search(said[-1]) or any(map(_REFUSES.search, said)):
        return []
    return said


def without_checks(text: str) -> str:
    """A text without the remarks at its end: in brackets, checks, comparisons, offers."""
    if (checked := _CHECKED_BELOW.search(text)) and _DIGIT.search(text[: checked.start()]):
        text = text[: checked.start()]
    while (remark := _IN_BRACKETS.search(text)) and _WORD.search(text[: remark.start()]):
        text = text[: remark.start()]
    sentences = _sentences(text)
    while len(sentences) > 1 and _is_check(sentences[-1][0]):
        text = text[: sentences.pop().start()]
    return text


def without_hypotheses(text: str) -> str:
    """A text without the sentences that say what would be if things were otherwise."""
    return _SENTENCE.sub(lambda match: "" if is_hypothetical(match[0]) else match[0], text)


def is_hypothetical(sentence: str) -> bool:
    """Whether it says what would be if things were otherwise, or what is made of the answer."""
    return bool(_HYPOTHETICAL.match(sentence)) or is_made_of_the_answer(sentence)


def is_made_of_the_answer(sentence: str) -> bool:
    """Whether it is not the answer itself that it gives: "Twice the answer is 50."."""
    return _OF_THE_ANSWER.match(sentence) is not None


def _sentences(text: str) -> list[re.Match[str]]:
    return [match for match in _SENTENCE.finditer(text) if _WORD.search(match[0])]


def _is_check(sentence: str) -> bool:
    return _CHECKS.match(sentence) is not None and not _SO.search(sentence)
