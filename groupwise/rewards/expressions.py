"""Arithmetic in model output, evaluated exactly by a parser of our own and never by `eval`.

    expression = term {("+" | "-") term}
    term       = factor {("*" | "/") factor}
    factor     = "-" factor | "(" expression ")" | number

Numbers are ASCII digits, values are exact fractions. Length, nesting and the size of a number are
bounded, so hostile text costs no more than honest text. There is no power operator: with it, a few
characters would be enough to fill the memory.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 400
MAX_DEPTH = 32
MAX_DIGITS = 20

_DIGITS = frozenset("0123456789")
_SYMBOLS = frozenset("+-*/()")
_TOKEN = re.compile(r"[0-9]+|\S")


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
    parser = _Parser(_tokens(text))
    value = parser.expression(depth=0)
    if parser.peek() is not None:
        raise ExpressionError(f"unexpected {parser.peek()!r} after the expression")
    return Evaluated(value, tuple(parser.numbers))


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    for token in (tokens := _TOKEN.findall(text)):
        if token[0] not in _DIGITS and token not in _SYMBOLS:
            raise ExpressionError(f"unexpected character {token!r}")
    return tokens


class _Parser:
    """Recursive descent over the tokens; `numbers` fills up on the way."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.numbers: list[int] = []

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, *wanted: str) -> str | None:
        token = self.peek()
        if token not in wanted:
            return None
        self.position += 1
        return token

    def expression(self, depth: int) -> Fraction:
        value = self.term(depth)
        while operator := self.take("+", "-"):
            operand = self.term(depth)
            value = value + operand if operator == "+" else value - operand
        return value

    def term(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while operator := self.take("*", "/"):
            operand = self.factor(depth)
            if operator == "/" and operand == 0:
                raise ExpressionError("division by zero")
            value = value * operand if operator == "*" else value / operand
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        if self.take("-"):
            return -self.factor(depth + 1)
        if self.take("("):
            value = self.expression(depth + 1)
            if not self.take(")"):
                raise ExpressionError("a parenthesis is never closed")
            return value
        return self.number()

    def number(self) -> Fraction:
        token = self.peek()
        if token is None or token[0] not in _DIGITS:
            raise ExpressionError(f"expected a number, not {token!r}")
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"a number has more than {MAX_DIGITS} digits")
        self.position += 1
        self.numbers.append(int(token))
        return Fraction(int(token))
