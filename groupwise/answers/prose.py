"""The number that the running text of a reply concludes, where no mark says what the answer is.

    "She has 18 marbles. This matches the total of 40."    18
    "So, in the end, seventeen people came."               seventeen people
    "It is 9 or 11, I can't decide."                       nothing

Every pattern is linear, and callers bound the text first.
"""

import re

from groupwise.answers.notation import prose_characters
from groupwise.answers.number_words import spelled_number
from groupwise.answers.quantities import last_number, said_twice
from groupwise.answers.sentences import concluding
from groupwise.answers.statements import denied_in_text

_DIGIT = re.compile(r"[0-9]")
_AMOUNT = r"[$€£]?[0-9][0-9.,]{0,12}"
_NO_SOLUTION = re.compile(r"\bno (?:real |integer )?solutions?\b(?! (?:other|but|except))", re.I)
_INFINITELY_MANY = re.compile(r"(?<!not )\binfinitely many\b", re.IGNORECASE)
_UNLESS_MORE = r"(?!.*(?:, |=|\b(?:so|has|have|had|are|remains?|left|leav\w+)\b)).*$"
_CLAUSE = re.compile(  # what explains or compares the number before it; a group in it is kept
    r"(?<!but)(?<!and)[,;]? (?:since|because|given that|by the time|ya que|porque|parce que|weil"
    r"|denn|perché|poiché|omdat|car (?:il|elle|c'est|le|la|les|nous|vous|je|chaque|une?))\b[^;]*$"
    r"|, (?:as|which is (?:[^ ]{1,12} ){0,2}(?:times|twice|half|below|above|less|more|under|over"
    r"|within|between)|including|assuming|based on|see|cf|and (?:any|every)(?:one|body)|whos?e?"
    rf"|of which|with {_AMOUNT} [a-z ]{{1,30}}"
    rf"|or {_AMOUNT} (?:[a-z]{{1,12}} )?(?:an?|per|each|every))\b"
    r"(?!.*(?:=|\b(?:so|hence|thus|leav\w+)\b|, (?:this|that|which|it|they|s?he)\b.*[0-9])).*$"
    r"|,? (?:if|including|excluding|compared (?:to|with)|according to|(?:at|by) the end of"
    rf"|(?:after|before) \w+ing)\b{_UNLESS_MORE}| ?[(\[][^()\[\]]*[)\]]\W{{0,5}}$"
    rf"|(?<=[0-9]) = {_AMOUNT}(?: ?[-+×*·] ?{_AMOUNT}){{1,9}}\W{{0,5}}$"
    r"|(?<=[0-9*] )([a-z ]{1,40}) (?:in|during|after|within|at(?= [0-9]+ [a-z]+ (?:an?|per)\b))"
    r"(?: the| base)? [0-9]{1,6}[a-z! ]{0,40}\W{0,5}$"
    # 64 dollars for the 16 glasses
    r"|(?<=[0-9])((?: [a-z]{1,15}){0,4}) (?:for|on|over) (?:all )?(?:of )?"
    r"(?:the|all|his|her|its|their|these|those) [0-9]{1,6}\b[a-z ]{0,40}\W{0,5}$"
    rf"|((?:[$€£][0-9][0-9.,]{{0,12}}|{_AMOUNT} (?:dollars|cents|euros|pounds))) for [0-9]{{1,6}}"
    r" (?!dollars|cents|euros|pounds)[a-z ]{1,40}\W{0,5}$"
    r"|[,;:]?(?: and| it| which)\b[a-z ]{1,40} (?:in|by) (?:[A-Z][a-z]{2,8} )?(?:19|20)[0-9]{2}"
    r"\W{0,5}$"
    rf"|(?<=[0-9] )(?<!/[0-9] )of (?:the|his|her|its|their|all) {_AMOUNT}[a-z ]{{0,40}}\W{{0,5}}$"
    r"|(?<=[0-9] )(?:is|was) the [0-9]{1,6}(?:st|nd|rd|th)\b[^0-9]*$"  # 64 is the 4th term
    rf"|({_AMOUNT} [a-z ]{{0,20}}(?:altogether|in total|in all))[,:]{_UNLESS_MORE}"
    rf"|, (?:(?:about|around|almost|nearly|roughly|or) )?{_AMOUNT} ?% of\b[^=]*$"
    # 2 seconds slower than Team 1; needs 7 packs to equip everybody with 2
    rf"|(?<=[0-9] )((?:[a-z]{{1,15}} ){{0,3}}(?:[a-z]{{2,10}}er|more|less)) than {_UNLESS_MORE}"
    rf"|(\b(?:need|take|require)s? [a-z ]{{0,40}}{_AMOUNT} [a-z ]{{1,40}}?) to"
    rf" (?!get|give|make|obtain|find){_UNLESS_MORE}"
    # there are 4 pairs: (1, 2), ...; there are 4 numbers that divide 8
    r"|(\bthere (?:is|are) [$*\\( ]{0,4}[0-9]{1,15}[^.=:0-9]{1,60}?)(?::(?!.*=).*,"
    r"| (?:that|for which|such that|less than|between)\b(?!.*, (?:so|which))).*$",
    re.IGNORECASE,
)
_BOLD_NUMBER = re.compile(r"\*\*(?! )([^*\n=]{0,20}[0-9][^*\n=]{0,30})\*\*")
_RESULT = re.compile(
    r"(?:=|\bequals|\bwhich (?:is|gives|makes)) ?[$€£*]{0,3}"
    r"([0-9][0-9,]{0,15}(?:\.[0-9]{1,9})?)(?![0-9]| ?[\\/·×*^+−-]| [0-9])"
)
_NUMERAL = re.compile(r"(?<![0-9.,^])[0-9][0-9,]{0,15}(?:\.[0-9]{1,9})?(?![0-9])")
_RATIO_IN_WORDS = re.compile(r"\b([0-9]{1,6}) to ([0-9]{1,6})(?=\W{0,3}$)")
_IS_IN_WORDS = re.compile(
    r"\b(?:is|are|equals|makes|gives|leaves|gets|has|have|end(?:s|ing)? up (?:at|with))"
    r" ([a-z -]{1,60})[.!\s]*$",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"\b(?:nothing|none|no(?: [a-z]+){1,2})(?: is| are| was| were)? (?:left|remain)"
)
_AND_A_HALF = re.compile(r"\b([0-9]{1,6})( [a-z]{1,12})? and a half\b")
_FORMULA_OF_NUMBER = re.compile(r"(?<![\\$])\$(-?[0-9][0-9.,]{0,15}(?:\\?%)?)\$(?![0-9$])")
_DOLLARS_AND_CENTS = re.compile(r"\b([0-9]{1,6}) dollars and ([0-9]{2}) cents\b")
_HOURS_AND_MINUTES = re.compile(r"\b([0-9]{1,4}) hours? and ([0-9]{1,2}) minutes?\b")


def concluded(text: str) -> str | None:
    """The number that a text ends on, with its unit; "no solution"; None where it decides on none.

    Questions, checks and offers behind the answer are passed over, and clauses that give a reason.
    """
    text = _FORMULA_OF_NUMBER.sub(r"\1", prose_characters(text))
    text = _AND_A_HALF.sub(lambda m: f"{m[1]}.5{m[2] or ''}", text)
    text = _DOLLARS_AND_CENTS.sub(r"$\1.\2", text)
    text = _HOURS_AND_MINUTES.sub(lambda m: f"{60 * int(m[1]) + int(m[2])} minutes", text)
    if not (sentences := concluding(text)):
        return None
    if _NO_SOLUTION.search(sentences[-1]):
        return "no solution"
    if _INFINITELY_MANY.search(sentences[-1]):
        return "infinitely many"
    if _NOTHING.search(sentences[-1]) and not _DIGIT.search(sentences[-1]):
        return "0"
    if (both := said_twice(sentences[-1])) is not None:
        return both
    for sentence in map(_without_clause, reversed(sentences)):
        if "ratio" in text:
            sentence = with_ratio_sign(sentence)
        said = _IS_IN_WORDS.search(sentence) if _DIGIT.search(sentence) else None
        spoken = said[1] if said else "" if _DIGIT.search(sentence) else sentence
        if (spelled := spelled_number(spoken)) is not None:
            before = sentence[: sentence.lower().rfind(spelled.split()[0])]
            return None if denied_in_text(before[-40:], "") else spelled
        if _DIGIT.search(sentence):
            return last_number(_until_result(sentence, text.rpartition(sentence)[0]))
    return None


def with_ratio_sign(sentence: str) -> str:
    """with_ratio_sign("as 4 to 5.") is "as 4:5.", at the end alone."""
    return _RATIO_IN_WORDS.sub(r"\1:\2", sentence)


def _without_clause(sentence: str) -> str:
    if len(bold := _BOLD_NUMBER.findall(sentence)) == 1:
        return bold[0]
    clause = _CLAUSE.search(sentence := sentence.strip())
    kept = clause[clause.lastindex] if clause and clause.lastindex else ""
    before = sentence[: clause.start()] + kept if clause else ""
    return before if _DIGIT.search(before) else sentence


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
        r"=|(?:,|^) (?:then|so|we|it) ?", sentence[numbers[places[-1]].end() :]
    )
    if not behind or goes_on or not all(_digits(match[0]) in given for match in behind):
        return sentence
    return sentence[: behind[0].start()]


def _digits(number: str) -> str:
    number = number.replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number
