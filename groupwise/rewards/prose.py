"""What the running text of a reply concludes, where no mark says what the answer is.

    "She has 18 marbles. This matches the total of 40."    18
    "So, in the end, seventeen people came."               seventeen people
    "It is 9 or 11, I can't decide."                       nothing
    "The roots are $-7$ and $3$, since ..."                $-7$ and $3$, as a formula

Every pattern is linear, and callers bound the text first.
"""

import re
from itertools import takewhile

from groupwise.rewards.notation import prose_characters
from groupwise.rewards.number_words import spelled_number
from groupwise.rewards.quantities import last_number, said_twice
from groupwise.rewards.statements import NOT_THAT, denied, denied_in_text, without_afterthought

_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?![\s\"')\]*_$]))+[.!?]*[\"')\]*_$]*")
_AFTER = re.compile(
    r"[\W_]*(?:(?:quick |sanity )?check(?: \w+)?|to (?:verify|(?:double[- ])?check)|verification"
    r"|verify|double[- ]check|for (?:instance|example)|not [$]?[0-9][0-9.,]{0,12}"
    r",?(?! but)|see (?:also|the|chapter|section|theorem|page|fig)|(?:this|that|it"
    r"|which)(?: result| answer)? (?:also )?(?:matches|agrees|fits|checks|equals the given"
    r"|is (?:consistent|plausible|reasonable)|makes sense)|would you|do you want|shall i"
    r"|let me know|feel free|i hope|hope this|(?:substituting|plugging)(?!.*\bwe get\b)|indeed"
    r"|note|remark|remember|for comparison|this (?:follows|comes) from|by the way"
    r"|we can (?:check|verify)"
    r"|with (?:that|this)|(?:my )?(?:confidence|certainty|difficulty)|I(?:'m"
    r"| am) (?:about )?[0-9.]{1,5} ?% (?:sure|confident|certain)|if you (?:need|want|have|had)"
    r"|you can (?:check|verify)|source|reference|for reference|compare|both (?:hold|work)"
    r"|(?:(?:it|that|this) )?works(?! out)"
    r"|(?:this|that|it)(?:'s| is) (?:more|less|fewer|[a-z]{2,10}er) than|v[ée]rifi[ck]a\w{2,6}"
    r"|comprobación|preuve|probe|kontrolle)\b"
    r"|[^.!?\n]*\bby the way\W*\Z",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:can(?:no|')t|could(?:n't| not)|impossible to|(?:unable|not able|not possible) to)"
    r" (?:be (?:determined|known|answered)|determine|decide|tell|say|know|help|answer|solve|give)\b"
    r"|\bnot (?:sure|certain)\b|\bI (?:don't|do not) know\b"
    r"|\b(?:answer (?:is|(?:should|must|will) be)|us with|equals|which is|and|of|the)[ :]*$"
    r"|\bneed (?:some )?more information\b|无法确定"
    r"|不能确定|\bnicht (?:bestimmen|sagen)\b|\bne peut pas\b|\bno se puede\b"
    r"|\b(?:either|could be|might be)\b[^.]{0,40}[0-9][^.]{0,30}\bor\b[^.]{0,20}[0-9]"
    r"|(?<![0-9.,]) [0-9]{1,9} or [0-9]{1,9} [a-z]"
    r"|\bone of [$€£]?[0-9.,]{1,12}(?: [a-z]{1,12})? and [$€£]?[0-9]",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(  # "Without the discount it would have been $80."
    r"[^.!?\n]{0,120}\bwould be\b[^.!?\n]{0,60}\bif\b"
    r"|[\W_]*(?:(?:note that|of course|but|for (?:example|instance)),? )?(?:(?:without|had"
    r"|if\b.{0,80}\b(?:were|was|had|did|ignored|forgot|counted|included|meant|intended|instead)"
    r"|if\b.{0,80}n't)\b.*(?:\bwould|'d)\b|[a-z ]{0,30}\b(?:might|may|could|would) (?:say|think"
    r"|object|argue|claim|guess)\b(?!.{0,200}\b(?:but|so)\b.{0,200}[0-9]))",
    re.IGNORECASE | re.DOTALL,
)
_REFUSES = re.compile(
    r"\b(?:can't|cannot|unable to) (?:solve|determine|answer|compute|calculate|work)\b"
    r"[^.]{0,40}\b(?:without|unless)\b|\b(?:as|just|only|merely) a (?:\w{1,10} )?guess\b"
    r"|\b(?:starting|wild) guess\b|\bplaceholder\b"
    r"|\b(?:don't|do not) (?:take|count) (?:it|that|this)\b",
    re.IGNORECASE,
)
_TOO_LITTLE = re.compile(r"(?:\bnot|n't) (?:\w{1,12} ){0,2}enough information", re.IGNORECASE)
_TWO_SOLUTIONS = re.compile(r"= ?-?[0-9.,]{1,12} or [a-z] ?= ?-?[0-9.,]{1,12}\W*$")
_INFINITELY_MANY = re.compile(
    r"(?<!not )(?<!not have )\b(?:infinitely many|infinite(?: number of)? solutions)\b",
    re.IGNORECASE,
)
_NO_SOLUTION = re.compile(
    r"\bno (?:real |integer )?solutions?\b(?! (?:other|but|except))", re.IGNORECASE
)
_CLAUSE = re.compile(  # what explains or compares the number before it; a group in it is kept
    r"(?<!but)(?<!and)[,;]? (?:since|because|given that|ya que|porque|parce que|weil|denn|perché"
    r"|poiché|omdat|eftersom|(?<=, )car|car (?:il|elle|c'est|le|la|les|nous|vous|je|chaque|une?))"
    r"\b.*$"
    r"|(?<=[0-9*] )([a-z ]{1,40}) (?:in|during)(?: the| base)? [0-9]{1,6}[a-z! ]{0,40}\W{0,5}$"
    r"|, (?:as|which is (?:still |well |just |[$€£]?[0-9.,]{1,12} ?%? ?(?:[a-z]+ )?)?(?:below"
    r"|above|less|more|under|over|within|between))\b.*$|,? (?:if|compared (?:to|with))\b"
    r"(?!.*(?:, |=)).*$|, (?:whos?e?|of which)\b(?!.*\b(?:leav|so|left)).*$"
    r"| (?:after|before) [a-z]{1,20}ing\b(?!.*(?:=|\b(?:has|have|had|is|are|remain|left|leav))).*$"
    r"|,? when [a-z ]{1,60} in (?:19|20)[0-9]{2}\W{0,5}$"
    r"|,? and [a-z ]{1,40} (?:in|by) (?:[A-Z][a-z]{2,8} )?(?:19|20)[0-9]{2}\W{0,5}$"
    r"| ?\([^()]*\)\W{0,5}$"
    r"|, (?:including|assuming|based on|and (?:any|every)(?:one|body))\b(?!.*=).*$"
    r"| (?:for the (?:year|month)|according to) .*$"
    r"|, with [0-9]{1,6} [a-z ]{1,30}(?:left over|remaining|to spare)\b.*$"
    r"| (?:at|by) the end of [^.=]*\W{0,3}$"
    r"|, or [$€£]?[0-9.,]{1,12} (?:[a-z]{1,12} )?(?:an?|per|each|every) [^.=]*\W{0,3}$"
    r"|,? (?:ie|that is),? (?:an? )?(?:loss|profit|gain|drop|fall|rise|decrease|increase)\b.*$"
    r"|(?<=[0-9a-z%C]):(?= (?:it|he|she|they|we|there|[0-9]{1,6} [a-z]+) [a-z]+)(?<!\bso:)"
    r"(?!.*(?:=|\b(?:so|total|altogether|in all|leav\w{1,3}|gives?|makes?)\b)).*$"
    # 4 times as likely as 3 heads; 2 seconds slower than Team 1
    r"|(?<=[0-9] )(?:(times as [a-z]{1,15}) |(?!times\b)((?:[a-z]{1,15} ){0,3}(?:[a-z]{2,10}er|more"
    r"|less)(?: [a-z]{1,15}){0,3}) than )(?!.*(?:, |=)).*$"
    # needs 7 packs to equip everybody with 2
    r"|(\b(?:need|take|require)s? [a-z ]{0,40}[0-9][0-9.,]{0,15} [a-z ]{1,40}?) to"
    r" (?!get|give|make|obtain|find|.*(?:, |=)).*$"
    # there are 4 pairs: (1, 2), ...; there are 4 numbers that divide 8
    r"|(\bthere (?:is|are) [$*\\( ]{0,4}[0-9]{1,15}[^.=:0-9]{1,60}?)(?::(?!.*=).*,"
    r"| (?:that|for which|such that|less than|between)\b(?!.*, (?:so|which))).*$",
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
    r"\b(?:is|are|equals|makes|gives|leaves|gets|end(?:s|ing)? up (?:at|with)|(?:total"
    r"|altogether|in all),? [a-z ]{1,20} ha(?:s|ve)) ([a-z -]{1,60})[.!\s]*$",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"\b([ei])\.([ge])\.|\b(pp?|no|fig|eq|rs)\.(?= ?[0-9])", re.IGNORECASE)
_REMARK = re.compile(
    r"(?<=[.!?\n])[\s*_]{0,8}\((?=[^()]{0,200}[A-Za-z]{3})[^()]{5,400}\)[\s.*_]{0,8}\Z"
)
_FORMULA_OF_NUMBER = re.compile(r"(?<![\\$])\$(-?[0-9][0-9.,]{0,15}(?:\\?%)?)\$(?![0-9$])")
_AND_A_HALF = re.compile(r"\b(?:an?|one) (hour|day|week|month|year|mile)s? and a half\b", re.I)
_HOURS_AND_MINUTES = re.compile(r"\b([0-9]{1,4}) hours? and ([0-9]{1,2}) minutes?\b")
_EXPLAINED = re.compile(  # So there are 79.\n### Explanation
    r"^(?:so|thus|hence|therefore)\b(?=[^\n]*[0-9])[^\n]*\n\s*[#*_ ]{0,6}explanation\b", re.I | re.M
)
_DISPLAY = re.compile(r"(?:\$\$|\\\[|\\begin\{)[^$]{1,600}?(?:\$\$|\\\]|\\end\{)")
_ASIDE = re.compile(
    r" \((?:[=≈~]|\\approx\b|(?:ie|or|about|approximately|roughly|around)\b)[^()]{1,80}\)", re.I
)
_ITEM = re.compile(r"[ \t]{0,8}(?:[-*•]|[0-9]{1,2}[.)])[ \t](.{1,60})")
_MATHS = re.compile(
    r"[0-9√π∞∅]|\\(?!text|quad|math|begin|end|left|right)[a-z]{2}|\w\)? ?[-−+*/^=<>≤≥] ?\\?[a-z(]"
)
_NOT_MATHS = re.compile(  # a word; not commands, what they hold, and names of functions
    r"\\(?:begin|end|text[a-z]*|math[a-z]+|operatorname|mbox)\{[^{}]{0,60}\}|\\[A-Za-z]+|(?:and|or"
    r"|sqrt|a?(?:sin|cos|tan)|cot|sec|csc|log|exp|det|mod)(?![A-Za-z])|(?P<word>[A-Za-z][a-z']{2,}"
    r"|(?:[IA]|(?i:is|it|to|of|we|in|at|by|as|so|if|on|an|be|do|no|he|us|ie|eg|es|el|la|le|un|de))(?![A-Za-z]))"
)
_GLUE = re.compile(
    r"^[\s,;:.*]*(?:(?:and|or)\b[\s,]*)?|[\s,;]*(?:\b(?:and|or))?[\s,;]*$|(?<=\$)!+\s*$"
)
_CONDITION = re.compile(
    r",? (?:(?:since|because)\b(?!.*\b(?:so|thus|hence|therefore)\b)"
    r"|(?:or |which is |ie\.? |i\.e\. )?(?:about|approximately|roughly|around) [$]?[0-9]"
    r"|(?:attained |reached )?at \$?[a-z] ?=|(?:where|when|whenever|if|provided|with|as long as"
    r"|using|for (?:all|every|any|some|real|\$?\\?[a-zA-Z]\b)|by|assuming|in terms of"
    r"|as (?:required|desired|claimed))\b(?!.*\b(?:is|are|get|gives?|equals?|have|has|obtain|find"
    r"|becomes?|so|thus|hence|yields?)\b))",
    re.IGNORECASE,
)
_TASK = re.compile(
    r"(?:\b(?:(?:need|have|want|try|going|asked|how|remains|left|wish) to|must|let's|let us|should"
    r"|whether|(?:step|task|goal|aim|job|problem|question) (?:is|was|says) to) (?:\w+ )?"
    r"|\A\W*(?:(?:first|next|then|now),? )?)(?:find|solve|factor|simplify|compute|calculate"
    r"|evaluate|expand|determine|show|prove)\b",
    re.IGNORECASE,
)
_SPOKEN = {"square root of": "√", "cube root of": "∛", "squared": "^2", "cubed": "^3", "pi": "π"}
_SPOKEN |= {"plus": "+", "minus": "-", "times": "*"}
_IN_SPEECH = re.compile(
    rf"(?<!\\)\b(?:(?:the|positive|principal) ){{0,2}}({'|'.join(_SPOKEN)})\b ?", re.IGNORECASE
)
_MODULUS = re.compile(r"\\p?mod ?(?:\{[0-9]{1,9}\}|[0-9]{1,9})|\(mod [0-9]{1,9}\)")
_DRESS = re.compile(r"\\(?:text[a-z]*|math[a-z]+)\{|[*_${}]")
_SO = re.compile(r"\b(?:so|thus|therefore|hence)\b.*?(?:[0-9]|\b[A-J]\b)")
_BOLD_NUMBER = re.compile(r"\*\*([^*\n=]{0,20}[0-9][^*\n=]{0,30})\*\*")
_IN_BRACKETS = re.compile(r" \((?=[^()]{0,100}[a-z]{3})[^()]{3,200}\)")
_BOLD = re.compile(r"(?:\*\*|\\textbf\{)([^*{}\n]{1,60})(?:\*\*|\})")
_PREDICATE = re.compile(
    r"(?:\b(?:is|are|was|be|becomes|remains|called|on)|[=:])(?: (?:an?|the|always|indeed))*[ \"]*$"
)
_SUPERLATIVE = re.compile(r" (?:is|was|has|had) (?:the )?(?:[a-z]+est|most|least|winner)\b")
_PREDICATE_ENDS = re.compile(
    r"[.,;:!)]| (?:because|since|as|with|for|by|when|whose|centered|\(|(?:and |but )?not|rather)"
)


def concluded(text: str) -> str | None:
    """The number that a text ends on, with its unit; "no solution"; None where it decides on none.

    Questions, checks and offers behind the answer are passed over, and clauses that give a reason.
    """
    text = _AND_A_HALF.sub(r"1.5 \1s", prose_characters(text))
    text = _FORMULA_OF_NUMBER.sub(r"\1", text)
    text = _HOURS_AND_MINUTES.sub(lambda m: f"{60 * int(m[1]) + int(m[2])} minutes", text)
    if not (sentences := _concluding(text)):
        return None
    if _TWO_SOLUTIONS.search(sentences[-1]):
        return None
    if _NO_SOLUTION.search(sentences[-1]):
        return "no solution"
    if _INFINITELY_MANY.search(sentences[-1]):
        return "infinitely many"
    if (both := said_twice(sentences[-1])) is not None:
        return both
    for sentence in map(_without_clause, reversed(sentences)):
        if "ratio" in text:
            sentence = with_ratio_sign(sentence)
        said = _IS_IN_WORDS.search(sentence)
        spoken = said[1] if said else "" if _DIGIT.search(sentence) else sentence
        spelled = spelled_number(spoken)
        if said and spelled is None and not _DIGIT.search(sentence):
            spelled = spelled_number(sentence)  # twenty dollars is the price
        if spelled is not None:
            before = sentence[: sentence.lower().rfind(spelled.split()[0])]
            return None if denied_in_text(before[-40:], "") else spelled
        if _DIGIT.search(sentence):
            return last_number(_until_result(sentence, text.rpartition(sentence)[0]))
    return None


def _concluding(text: str) -> list[str]:
    """The sentences of a text up to its conclusion; none where it does not decide on one."""
    text = _ASIDE.sub("", _ABBREVIATED.sub(r"\1\2\3", text))
    text = without_remarks(text)
    text = text[: end.end()] if (end := _EXPLAINED.search(text)) else text
    sentences = [match[0] for match in _sentences(text)]
    sentences = [text for text in sentences if not text.rstrip("\"')]*_ ").endswith("?")]
    while len(sentences) > 1 and _is_check(sentences[-1]):
        sentences.pop()
    stated = [text for text in sentences if not is_hypothetical(text)]
    if any(_DIGIT.search(text) for text in stated):
        sentences = stated
    if not sentences or _UNDECIDED.search(sentences[-1]) or any(map(_REFUSES.search, sentences)):
        return []
    return [] if _TOO_LITTLE.search(" ".join(sentences[-3:])) else sentences


def without_remarks(text: str) -> str:
    """A text without the sentences in brackets at its end."""
    while (remark := _REMARK.search(text)) and _WORD.search(text[: remark.start()]):
        text = text[: remark.start()]
    return text


def without_checks(text: str) -> str:
    """Nor those that check, compare or refer to something."""
    text = without_remarks(text)
    sentences = _sentences(text)
    while len(sentences) > 1 and _is_check(sentences[-1][0]):
        text = text[: sentences.pop().start()]
    return text


def with_ratio_sign(sentence: str) -> str:
    """with_ratio_sign("as 4 to 5.") is "as 4:5.", at the end alone."""
    return _RATIO_IN_WORDS.sub(r"\1:\2", sentence)


def _sentences(text: str) -> list[re.Match[str]]:
    return [match for match in _SENTENCE.finditer(text) if _WORD.search(match[0])]


def _is_check(sentence: str) -> bool:
    return _AFTER.match(sentence) is not None and not _SO.search(sentence)


def concluded_formulas(text: str) -> list[str]:
    """How the formula that a text concludes with can be read: a list, the whole, its right side."""
    text = _DISPLAY.sub(lambda match: match[0].replace("\n", " "), text)
    lines = takewhile(bool, map(_ITEM.fullmatch, text.rstrip().splitlines()[::-1]))
    items = [_last_formula(item[1]) for item in lines if item][::-1]
    found = [", ".join(filter(None, items))] if len(items) > 1 and all(items) else []
    for sentence in reversed(_concluding(text)[-3:]):
        if _TASK.search(sentence):
            break
        if (formula := _last_formula(sentence)) is not None:
            formula = _MODULUS.sub("", formula).replace("\\equiv", "=")
            right = formula.rpartition("=")[2]
            return [*found, formula, *([] if re.search(r",|\b(?:and|or)\b", formula) else [right])]
    return found


def _last_formula(sentence: str) -> str | None:
    """The last part of a sentence between its words that is mathematics and is not denied."""
    sentence = _IN_SPEECH.sub(lambda m: _SPOKEN[m[1].lower()], without_afterthought(sentence))
    for clause in _CONDITION.finditer(sentence):
        if _MATHS.search(sentence[: clause.start()]):
            sentence = sentence[: clause.start()]
            break
    words = [match for match in _NOT_MATHS.finditer(sentence) if match["word"]]
    edges = [0, *(edge for word in words for edge in word.span()), len(sentence)]
    for begin, end in reversed(list(zip(edges[::2], edges[1::2], strict=True))):
        if _MATHS.search(sentence[begin:end]):
            before = re.split(r"[,;:]|\bbut\b", sentence[max(begin - 30, 0) : begin])[-1]
            if denied(before, sentence[end : end + 30]):
                return None
            return _GLUE.sub("", sentence[begin:end]).strip(" .,;:*_") or None
    return None


def concludes_with(text: str, words: str) -> bool:
    """Whether a text concludes with words that are no number: "Hence f is **odd**, as claimed."."""
    sentences = _concluding(text)
    if not sentences or not re.fullmatch(r"[a-z][a-z' -]{1,40}", words):
        return False
    sentence = _DRESS.sub("", without_afterthought(sentences[-1])).casefold().strip()
    bold = [match[1].casefold().strip(" .") for match in _BOLD.finditer(sentences[-1])]
    for match in re.finditer(rf"(?<![\w-]){re.escape(words)}(?![\w-])", sentence):
        before, after = sentence[: match.start()][-80:], sentence[match.end() :]
        said = not _WORD.search(after) or words in bold[-1:] or _SUPERLATIVE.match(after)
        said = said or (_PREDICATE.search(before) and _PREDICATE_ENDS.match(after))
        if said and not NOT_THAT.search(before) and not denied("", after[:40].partition(",")[0]):
            return True
    return words in ("yes", "no", "true", "false") and sentence.startswith(words)


def _until_result(sentence: str, before: str) -> str:
    """The sentence up to the last result, its own or one before it, where what follows was given.

    "4 * 6 = 24 eggs. So he needs 24 eggs for 4 cakes." The 4 is no answer: the text had it before
    it had its last result, which the sentence repeats.
    """
    before += sentence
    results = list(_RESULT.finditer(before))
    numbers = list(_NUMERAL.finditer(sentence))
    if not results or not numbers:
        return sentence
    given = {_digits(match[0]) for match in _NUMERAL.finditer(before, 0, results[-1].start())}
    result = _digits(results[-1][1])
    places = [n for n, match in enumerate(numbers) if _digits(match[0]) == result]
    behind = numbers[places[-1] + 1 :] if places else []
    goes_on = behind and re.search(
        r"=|(?:,|^) (?:then|so|we) ", sentence[numbers[places[-1]].end() :]
    )
    if not behind or goes_on or not all(_digits(match[0]) in given for match in behind):
        return sentence
    return sentence[: behind[0].start()]


def _digits(number: str) -> str:
    number = number.replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def _without_clause(sentence: str) -> str:
    if len(bold := _BOLD_NUMBER.findall(sentence)) == 1:
        return bold[0]
    outside = _IN_BRACKETS.sub("", sentence)
    sentence = outside if _DIGIT.search(outside) else sentence
    clause = _CLAUSE.search(sentence := sentence.strip())
    kept = clause[clause.lastindex] if clause and clause.lastindex else ""
    before = sentence[: clause.start()] + kept if clause else ""
    return before if _DIGIT.search(before) else sentence


def without_hypotheses(text: str) -> str:
    """A text without the sentences that say what would be if things were otherwise."""
    return _SENTENCE.sub(lambda match: "" if is_hypothetical(match[0]) else match[0], text)


def is_hypothetical(sentence: str) -> bool:
    """Whether it says what would be if things were otherwise."""
    return _HYPOTHETICAL.match(sentence) is not None
