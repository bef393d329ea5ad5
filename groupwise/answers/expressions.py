"""Arithmetic in model output, evaluated exactly and never by `eval`.

Whole numbers, `+ - * /` and parentheses: Python parses the text, and nothing else of its grammar is
accepted. Values are exact fractions. Length, nesting and the size of a number are bounded, so
hostile text costs no more than honest text. There is no power operator: with it, a few characters
would be enough to fill the memory.
"""

import ast
import operator
import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

MAX_LENGTH = 400
MAX_DEPTH = 32
MAX_DIGITS = 20

_FOREIGN = re.compile(r"[^0-9+\-*/()\s]")
_NUMBER = re.compile(r"[0-9]+")
_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_SIGNS = re.compile(rf"(?:-\s*){{{MAX_DEPTH + 1}}}")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ExpressionError(ValueError):
    """The text is not an expression, or it has no value."""


@dataclass(frozen=True)
class Evaluated:
    """Evaluated(value=Fraction(4), numbers=(9, 3, 1)) is what "9/3+1" gives."""

    value: Fraction
    numbers: tuple[int, ...]
    """Every number that was written, in order of appearance."""


def evaluate(text: str) -> Evaluated:
    """The exact value of an expression and the numbers in it; ExpressionError if it has none."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    if foreign := _FOREIGN.search(text):
        raise ExpressionError(f"unexpected character {foreign[0]!r}")
    if text.count("(") > MAX_DEPTH < max(accumulate((c == "(") - (c == ")") for c in text)):
        raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
    numbers = _NUMBER.findall(text)
    if _SIGNS.search(text) or any(len(number) > MAX_DIGITS for number in numbers):
        raise ExpressionError(f"more than {MAX_DEPTH} signs or {MAX_DIGITS} digits in a row")
    # Python knows no number 007, and takes a line break outside parentheses for an end.
    text = _ZEROS.sub("", " ".join(text.split()))
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise ExpressionError(str(error)) from None
    return Evaluated(value, tuple(map(int, numbers)))


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left), _value(right))
    raise ExpressionError("more than + - * / and parentheses")
