"""The tool `calculate`. A small example of a tool: a function with types and a docstring."""

from groupwise.answers.expressions import evaluate
from groupwise.extensions import tool


@tool
def calculate(expression: str) -> str:
    """Works out a sum such as 482+917-356.

    Args:
        expression: Whole numbers, parentheses and + - * /.
    """
    return str(evaluate(expression).value)
