"""Where the answer stands in a completion, and whether it is the right one.

Numbers are compared exactly, as fractions: 0.5 = 1/2 = .50, and 0.333 is not 1/3. Deviations that
one might not expect:

- 50% equals 50 and also 0.5 (datasets write all three), though 50 does not equal 0.5.
- Units and words around a number are ignored unless both sides have one and they contradict.
- If the truth is a number, the answer must be a number too: `23+48` is not an answer to itself.
  What counts is a number: `5!` and `\\binom{10}{3}`.
- Dates, times and ratios are compared as text: 4:6 is not 2:3, and 2024-05-17 subtracts nothing.
  But the ratio 9:16 is the fraction 9/16.
- What is neither number nor equal text goes to math-verify, if it looks like mathematics and is
  harmless: short, no towers of powers, nothing that would be expanded for minutes.

Model output is hostile: every scan is linear, and what is compared is at most 1000 characters.
"""

import re
from typing import Any

from groupwise.answers.formulas import concluded_formulas, concludes_with
from groupwise.answers.mathematics import is_count, is_equation, same_mathematics
from groupwise.answers.notation import LIMIT, plain
from groupwise.answers.prose import concluded, with_ratio_sign
from groupwise.answers.quantities import (
    Quantity,
    extract_number,
    is_rounded,
    read_quantity,
    same_quantity,
    with_decimal_point,
)
from groupwise.answers.replies import reply
from groupwise.answers.sentences import is_hypothetical, is_made_of_the_answer
from groupwise.answers.statements import WRONG
from groupwise.answers.tags import tag_content

__all__ = [
    "boxed_answer",
    "boxed_format",
    "canonical_answer",
    "correct",
    "extract_number",
    "final_answer",
    "same_answer",
]

SHORT = 40
"""A text of no more characters is the answer as a whole."""
TAIL = 4000
"""Without a mark that says where it is, the answer is looked for in so many last characters."""

_SAYS = re.compile(
    r"(?:\A|\n)A: |\banswer(?: itself)?(?: (?:is|are|(?:must|should|would|will) be)\b(?!n't)|:| ="
    r"| (?=(?:[a-z]{2,6}n't|cannot|[a-z]{3,6} not)\b))(?: ?:)? ?",
    re.IGNORECASE,
)
_JSON = re.compile(
    r"[\"'](?:final[_ ]?)?(?:answer|choice|option|result|solution)[\"']\s{0,4}:\s{0,4}"
    r"(?:\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'|(-?[0-9][0-9.,eE+/-]{0,40}|null|true|false))",
    re.IGNORECASE,
)
_LONE_BACKSLASH = re.compile(r"(?<!\\)\\(?!\\)")
_HOW_SURE = re.compile(
    r"[(,;](?:[^(),;\n.]|\.(?=[0-9])){0,40}\b(?<!not )(?<!n't be )(?<!not be )"
    r"(?:sure\b(?! to)|confiden|certain)[^()\n]{0,30}\)?[.\s]*$"
)
_NOT_MEANT = re.compile(  # what somebody else would answer, or the wrong way
    r"\b(?:(?:might|may|could|would|some|people|many|others?|someone) (?:\w{1,12} ){0,2}"
    r"(?:say|think|answer|guess|claim|believe|assume|argue)s?|(?:do not|don't) (?:think|believe)"
    r"|doubt|tempt(?:ed|ing)|wrong|incorrect|naive|(?:not|n't|cannot) believe|I first thought)"
    r"\b(?:(?!\bbut\b)[^.!?\n]){0,40}$|(?<!\bI )(?<!\bwe )\b(?:wrote|says?|said|claim(?:s|ed)"
    r"|thought|guess(?:es|ed))(?: that)?:?[ \"'“]{1,3}(?:the )?$",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"\b(?:edit|correction|sorry|misread|wait|actually|hmm|oops|forgot|scratch that|recount"
    r"|my mistake|on second thought|hold on(?! to)|made an? (?:mistake|error))\b.*[0-9]",
    re.IGNORECASE | re.DOTALL,
)
_HEDGED = re.compile(r"\b(?:either|maybe|between|or so)\b|[0-9] or [$0-9]", re.IGNORECASE)
_SETTLED = re.compile(
    r"\b(?:so|thus|hence|therefore|must|only|gives|needs?|exactly)\b.*[0-9]", re.I | re.DOTALL
)
_DENIED_NEXT = re.compile(r"[\s\"']*(?:this|that) is (?:incorrect|wrong)\b", re.IGNORECASE)
_APPROXIMATELY = re.compile(r" ?(?:≈|\\approx) ?")
_VARIABLE = re.compile(r"[^=a-zA-Z]{0,6}([A-Za-z])[\s}$]{0,3}=[^=]+")
_DOZEN = re.compile(r"(?<=[0-9]) dozens?\b")
_MORE_THAN_WORDS = re.compile(r"[\\\n]|[0-9],[0-9]")
_NUMBER = re.compile(r"[0-9]+(?:[.,/][0-9]+)*")
_FORMULA_SIGN = re.compile(r"[\\=^/]")
_FRACTION_SIGN = re.compile(r"[0-9] ?/ ?[0-9]|\\[dt]?frac")
_RATIO = re.compile(r"^\$?([0-9]{1,6}) ?: ?([0-9]{1,6})\$?$")
_NOT_THE_BOX = re.compile(r"\bnot [$\\(]{0,3}$")
_BEHIND_BOX = re.compile(r"\}\s{0,2}=([^=$\n]{1,80})(?=\$|\\[\])]|\n|\Z)")
_LAST_FORMULA = re.compile(
    r"(?:\$[^$]{1,200}\$\$?|\\[(\[](?:(?!\\[(\[]).){1,200}\\[)\]])[\s.!*]*$", re.DOTALL
)
_SENTENCE_END = re.compile(r"\n|。|[.!?](?<!\bi\.e\.)(?<!\be\.g\.)(?<!\bp\.)(?:\s(?!=)|$)")
_CHOICE = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|choice|answer)(?: is|:)? ?)?"
    r"[(\[{\"']?([A-J])(?:[)\]}\"'][.:]?|[.:]| ?-|)(?:(?<=[)\].:-])\s(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_ANOTHER_CHOICE = re.compile(
    rf"\b(?:is|was) (?:not|{WRONG})\b|\b(?:or|and)\b|\(?\b[A-Ja-j]\)|^[A-J]\b"
)
_BARE_BOX = re.compile(r"\\boxed ([0-9]{1,20}|[A-Za-z](?![A-Za-z]))")  # as some of MATH's are
_BOX = r"\\boxed\{((?:[^{}]|\{[^{}]{1,20}\}){1,60})\}"
_BOTH_BOXES = re.compile(_BOX + r"[\s$\\)]{0,8},?\s(?:or|and)\s[\s$\\(]{0,8}(?:[a-z] ?= ?)?" + _BOX)
_MEANINGS = re.compile(
    r"(?P<infinitely_many>(?:infinitely many|∞|\\infty)(?: solutions?)?)"
    r"|(?P<no_solution>no solutions?|∅)"
)


def correct(completion: str, answer: Any) -> bool:
    """Whether the completion's final answer is `answer` (GSM8K's "... #### 42" counts as 42)."""
    truth = str(answer).rpartition("####")[2]
    text = reply(completion)
    given = _final(text)
    if given and same_answer(given, truth):
        return True
    if len(truth) > LIMIT or _true_quantity(truth) is not None or _marked(text) is not None:
        return False
    if given and _is_of_another_variable(given, truth):
        return False
    if len(text) <= SHORT and same_answer(text, truth):
        return True
    tail = text[-TAIL:]
    words = plain(truth).casefold()
    return concludes_with(tail, words) or same_mathematics(concluded_formulas(tail), truth)


def final_answer(text: str) -> str | None:
    """The answer that a text ends on, as it is written there.

    In `<answer>` tags, else the last \\boxed{}, else after the last ####, else in JSON, else after
    "the answer is", else the formula that the text ends on, else the number that its last sentences
    conclude with (prose.py). Two answers in tags are none: the writer has not decided on one.
    """
    return _final(reply(text)) or None


def _final(text: str) -> str | None:
    given = _marked(text)
    if given is None:
        given = _after_saying_so(text[-TAIL:])
    if given is None:
        return _unmarked(text[-TAIL:])
    if SHORT < len(given) <= LIMIT and given[0].isupper():  # Ray takes 54 minutes longer than ...
        return concluded(given) or given
    return given


def _marked(text: str) -> str | None:
    """What a mark singles out: tags, a box, ####, JSON. "" where that is no answer."""
    if "<answer>" in text and "</answer>" in text:
        content = tag_content(text, "answer") or ""
        return (boxed_answer(content) or content).strip()
    if (boxed := boxed_answer(text)) is None:
        return _after_hashes(text) or in_json(text[-TAIL:])
    place = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if _NOT_THE_BOX.search(text[max(place - 12, 0) : place]):
        return boxed_answer(text[:place]) or boxed
    rest = text[place:][-TAIL:]
    later = _after_saying_so(rest)
    if later and read_quantity(later) is not None:
        return later  # The correct answer is 31.
    behind = _BEHIND_BOX.match(rest.partition("{" + boxed)[2])
    if behind and read_quantity(boxed) is None:
        return behind[1].strip(" .")  # the box holds what is still to be calculated
    both = _BOTH_BOXES.findall(text[-TAIL:])  # two solutions, or one who has not decided
    return " or ".join(both[-1]) if both and both[-1][1] == boxed else boxed


def _unmarked(tail: str) -> str | None:
    """What running text concludes: the formula that it ends on, else a number."""
    if (formula := _LAST_FORMULA.search(tail)) and _FORMULA_SIGN.search(formula[0]):
        return next(iter(concluded_formulas(tail)), None)
    return _in_prose(tail)


def same_answer(given: str, truth: str) -> bool:
    """Whether two short texts state the same answer, as the module's docstring defines it."""
    given, truth = (_unboxed(text).strip() for text in (given, truth))
    if not given or not truth or len(given) > LIMIT or len(truth) > LIMIT:
        return False
    if _is_of_another_variable(given, truth):
        return False
    if ":" in truth:
        given = with_ratio_sign(given)  # 3 to 4
    exactly, _, roughly = _APPROXIMATELY.sub("≈", given).partition("≈")
    if is_rounded(exactly, roughly):  # 1/6 ≈ 0.167
        return same_answer(exactly, truth) or same_answer(roughly, truth)
    # 9:16 as a fraction
    if (":" in given) != (":" in truth) and _FRACTION_SIGN.search(given + truth):
        given, truth = (_RATIO.sub(r"\1/\2", text) for text in (given, truth))
    right, ours = _true_quantity(truth), read_quantity(given)
    if right is not None and ours is None:
        ours = read_quantity(with_decimal_point(plain(given)))
    if right is not None and ours is not None:
        dozens = right.unit is None and _DOZEN.search(given)  # asked for dozens: 7 dozen is 7
        return same_quantity(ours, right) or (bool(dozens) and ours.value == 12 * right.value)
    if _normal(given) == _normal(truth) or _same_choice(given, truth):
        return True
    return (right is None or is_count(given)) and same_mathematics([given], truth)


def _is_of_another_variable(given: str, truth: str) -> bool:
    """Whether one is x = 3 and the other is y = 3."""
    names = [named[1].lower() for named in map(_VARIABLE.fullmatch, (given, truth)) if named]
    return len(set(names)) == 2


def _true_quantity(truth: str) -> Quantity | None:
    """The quantity that a truth is; None for an equation, of which it is more than one side."""
    return None if is_equation(truth) else read_quantity(truth)


def canonical_answer(text: str) -> str | None:
    """The final answer in a form that equal answers share, for voting; None where there is none."""
    answer = final_answer(text)
    if answer is None or len(answer) > LIMIT:
        return None
    number = extract_number(answer)
    return str(number) if number is not None else _normal(answer) or None


def boxed_answer(text: str) -> str | None:
    """What the last \\boxed{...} that closes holds, braces within it balanced."""
    end = len(text)
    for _ in range(2):  # the last may be cut off
        end = max(text.rfind("\\boxed{", 0, end), text.rfind("\\fbox{", 0, end))
        if end < 0:
            bare = _BARE_BOX.findall(text[-TAIL:])
            return bare[-1] if bare else None
        start = text.index("{", end) + 1
        depth = 1
        for position in range(start, min(start + LIMIT, len(text))):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start:position].strip()
    return None


def _unboxed(text: str) -> str:
    boxed = boxed_answer(text) if text.count("\\boxed") == 1 else None
    return text if boxed is None else boxed


def boxed_format(completion: str) -> bool:
    """Whether the text holds exactly one \\boxed{} and there is something in it."""
    return completion.count("\\boxed") == 1 and bool((boxed_answer(completion) or "").strip())


def _after_hashes(text: str) -> str | None:
    """The rest of the last `####` line. A heading of that level (`#### Step 2`) is no answer."""
    before, marker, rest = text.rpartition("####")
    if not marker or before.endswith("#"):
        return None
    line, _, below = rest[: LIMIT + 1].partition("\n")
    line = line.strip()
    heading = line[:1].isalpha() and (below.strip() or len(line) > 40)
    return None if heading or not line else line


def _after_saying_so(text: str) -> str | None:
    """What stands after "the answer is"; "" where that is asked."""
    text = text.rstrip(" *:$\n")
    matches = [match for match in _SAYS.finditer(text) if not _is_not_meant(text, match)]
    if matches and matches[-1].end() == len(text):
        matches.pop()  # repeats itself, and is cut off
    if not matches:
        return None
    rest = text[matches[-1].end() :].lstrip(" *:\n")
    end = _SENTENCE_END.search(rest)
    if end and end[0].startswith("?"):
        return ""  # a question is no answer
    if end and (_RETRACTED.search(rest, end.end()) or _DENIED_NEXT.match(rest, end.end())):
        return None
    if end and _HEDGED.search(rest, 0, end.start()) and _SETTLED.search(rest, end.end()):
        return None
    return (rest[: end.start()] if end else rest).strip(" *_✅✓✔☑") or None


def _is_not_meant(text: str, said: re.Match[str]) -> bool:
    """Whether "the answer is" belongs to what is not meant: "you might think the answer is 20"."""
    start = 1 + max(text.rfind(end, 0, said.start()) for end in (". ", "\n", "? ", "! "))
    before = text[max(start, said.start() - 120) : said.start()]
    would = "would" in said[0].lower() and is_hypothetical(
        before + text[said.start() : said.end() + 80]
    )
    derived = is_made_of_the_answer(before + said[0])
    return would or derived or _NOT_MEANT.search(before) is not None


def in_json(text: str) -> str | None:
    """The value of the last `"answer": ...`."""
    values = [value for groups in _JSON.findall(text) for value in groups if value]
    if not values:
        return None
    value = values[-1] if _LONE_BACKSLASH.search(values[-1]) else values[-1].replace(r"\\", "\\")
    return value.rstrip(",.").strip() or None


def _in_prose(text: str) -> str | None:
    """What running text concludes. One that is short is the answer as a whole: what it says of its
    only number (`x < 7`, "not 7") must not be left out."""
    number, text = concluded(_HOW_SURE.sub("", text)), text.strip()
    short = len(text) <= SHORT and text.isascii() and not _MORE_THAN_WORDS.search(text)
    bare = text.replace("*", "").rstrip("!")
    alone = short and len(_NUMBER.findall(text)) == 1 and not (number or "").endswith("!")
    return None if alone and read_quantity(bare) is None else number


def _normal(text: str) -> str:
    """Text in a form that differs only where answers do: case, spaces and outer marks go."""
    answer = r"^(?:the )?(?:(?:final )?answer(?: is|:) ?)?"
    text = re.sub(answer, "", plain(text), flags=re.IGNORECASE)
    text = text.casefold().strip(" .,;:?\"'")
    text = text.rstrip("!") if text.rstrip("!")[-1:].isalpha() else text  # 5! is a factorial
    if (meaning := _MEANINGS.fullmatch(text)) is not None:
        return meaning.lastgroup or ""
    text = re.sub(r"\{(\w)\}", r"\1", text)  # 3^{3^{3}} is 3^{3^3}
    text = re.sub(r"(?<=[0-9]) ?(?:by|x) ?(?=[0-9])", "×", text)  # 3 by 4
    # Words stay apart; around anything else a space means nothing.
    return re.sub(r"(?<![a-z0-9]) | (?![a-z0-9])", "", text)


def _same_choice(given: str, truth: str) -> bool:
    """(B) = B = b. = "B) 42": one letter, with what it stands for or without."""
    ours, right = _CHOICE.fullmatch(plain(given)), _CHOICE.fullmatch(plain(truth))
    if ours is None or right is None or ours[1].upper() != right[1].upper():
        return False
    return not any(choice[2] and _ANOTHER_CHOICE.search(choice[2]) for choice in (ours, right))
