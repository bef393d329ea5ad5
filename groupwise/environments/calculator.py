"""The tool `calculate`. A small example of a tool: a function with types and a docstring."""

from groupwise.extensions import tool
from groupwise.rewards.expressions import evaluate


@tool
def calculate(expression: str) -> str:
    """Works out a sum such as 482+917-356.

    Args:
        expression: Whole numbers, parentheses and + - * /.
    """
    return str(evaluate(expression).value)
