"""The formula, or the words, that the running text of a reply concludes with.

    "The roots are $-7$ and $3$, since ..."    $-7$ and $3$
    "Hence f is **odd**, as claimed."          odd

Every pattern is linear, and callers bound the text first.
"""

import re
from itertools import takewhile

from groupwise.answers.sentences import concluding
from groupwise.answers.statements import NOT_THAT, denied, without_afterthought

_WORD = re.compile(r"\w")
_DISPLAY = re.compile(r"(?:\$\$|\\\[|\\begin\{)[^$]{1,600}?(?:\$\$|\\\]|\\end\{)")
_ITEM = re.compile(r"[ \t]{0,8}(?:[-*•]|[0-9]{1,2}[.)])[ \t](.{1,60})")
_MATHS = re.compile(
    r"[0-9√π∞∅]|\\(?!text|quad|math|begin|end|left|right)[a-z]{2}|\w\)? ?[-−+*/^=<>≤≥] ?\\?[a-z(]"
)
_NOT_MATHS = re.compile(  # a word; not commands, what they hold, and names of functions
    r"\$(?! )[^$\n]{1,200}(?<! )\$"
    r"|\\(?:begin|end|text[a-z]*|math[a-z]+|operatorname|mbox)\{[^{}]{0,60}\}|\\[A-Za-z]+"
    r"|(?:and|or|sqrt|a?(?:sin|cos|tan)|cot|sec|csc|log|exp|det|mod)(?![A-Za-z])|(?P<word>[A-Za-z][a-z']{2,}"
    r"|(?:[IA]|(?i:is|it|to|of|we|in|at|by|as|so|if|on|an|be|do|no|us|ie|eg|es))(?![A-Za-z]))"
)
_GLUE = re.compile(r"^[\s,;:.*]*(?:and|or)\b|\b(?:and|or)[\s,;]*$|(?<=\$)!+\s*$")
_CONDITION = re.compile(  # what a formula holds for, why, and what it is in decimals
    r",? \(?(?:(?:which is )?valid\b|(?:since|because|where|if|when|unless|provided"
    r"|assuming|as long as|for (?:all|every|any|some))\b(?!.*\b(?:so|thus|is|are|get)\b)"
    r"|where\b[^=0-9]{0,60}$|(?:or |which is )?(?:about|approximately|roughly|around) [$]?[0-9]"
    r"|(?:attained )?at \$?\w ?=)|(?<=\$) as (?=\$)"
    r"|(?<=\$),? \(?(?:with|for)(?= \$?\w ?(?:\\[ngl][et]|[<>≠≥≤]))",
    re.IGNORECASE,
)
_TASK = re.compile(  # is still to be done: "we need to factor x² - 1"
    r"\b(?:(?:need|have|want|try|going|how|remains|left|is|was) to|must|let's|let us|should"
    r"|whether) (?:\w+ )?"
    r"(?:find|solve|factor|simplify|compute|calculate|evaluate|expand|determine|show|prove)\b",
    re.IGNORECASE,
)
_SPOKEN = {"square root of": "√", "cube root of": "∛", "squared": "^2", "cubed": "^3", "pi": "π"}
_SPOKEN |= {"plus": "+", "minus": "-", "times": "*", "infinity": "∞"}
_SPOKEN["all real numbers"] = "(-∞, ∞)"
_IN_SPEECH = re.compile(
    rf"(?<!\\)(?<!for )\b(?:(?:the|positive|principal) ){{0,2}}({'|'.join(_SPOKEN)})\b ?",
    re.IGNORECASE,
)
_MODULUS = re.compile(r"\\p?mod ?(?:\{[0-9]{1,9}\}|[0-9]{1,9})|\(mod [0-9]{1,9}\)")
_BOLD = re.compile(r"(?:\*\*|\\textbf\{)([^*{}\n]{1,60})(?:\*\*|\})")
_PREDICATE = re.compile(
    r"(?:\b(?:is|are|was|be|becomes|remains|called|on|option|choice)|[=:])"
    r"(?: (?:an?|the|always|indeed))*[ \"]*$"
)
_PREDICATE_ENDS = re.compile(r"[.,;:!)]| (?:because|since|as|with|for|by|when|(?:and |but )?not)")


def concluded_formulas(text: str) -> list[str]:
    """How the formula that a text concludes with can be read: a list, the whole, its right side."""
    text = _DISPLAY.sub(lambda match: match[0].replace("\n", " "), text)
    lines = takewhile(bool, map(_ITEM.fullmatch, text.rstrip().splitlines()[::-1]))
    items = [_last_formula(item[1]) for item in lines if item][::-1]
    found = [", ".join(filter(None, items))] if len(items) > 1 and all(items) else []
    for sentence in reversed(concluding(text)[-3:]):
        if _TASK.search(sentence):
            break
        if (formula := _last_formula(sentence)) is not None:
            congruence = [formula] if "\\equiv" in formula else []
            formula = _MODULUS.sub("", formula).replace("\\equiv", "=")
            several = re.search(r"(?<!\\),|\b(?:and|or)\b", formula)
            right = [] if several else [formula.rpartition("=")[2]]
            return [*found, formula, *right, *congruence]
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
            before = re.split(r"[,;:]|(?<!thing )\bbut\b", sentence[max(begin - 30, 0) : begin])[-1]
            if denied(before, sentence[end : end + 30]):
                return None
            return _GLUE.sub("", sentence[begin:end]).strip(" .,;:*_") or None
    return None


def concludes_with(text: str, words: str) -> bool:
    """Whether a text concludes with words, "Hence f is **odd**, as claimed.", or with a letter."""
    sentences = concluding(text)
    letter = re.fullmatch(r"\(?([a-j])\)?", words)
    if not sentences or not (letter or re.fullmatch(r"[a-z][a-z' -]{1,40}", words)):
        return False
    words = rf"(?:\({letter[1]}\)(?: \$?[0-9.,/]+)?|{letter[1]})" if letter else re.escape(words)
    sentence = without_afterthought(sentences[-1]).casefold().strip()
    bold = [match[1].casefold().strip(" .") for match in _BOLD.finditer(sentences[-1])]
    for match in re.finditer(rf"(?<![\w-]){words}(?![\w-])", sentence):
        before, after = sentence[: match.start()][-80:], sentence[match.end() :]
        said = not _WORD.search(after) or words in bold[-1:]
        said = said or (_PREDICATE.search(before) and _PREDICATE_ENDS.match(after))
        if said and not NOT_THAT.search(before) and not denied("", after[:40].partition(",")[0]):
            return True
    return words in ("yes", "no", "true", "false") and sentence.startswith(words)
