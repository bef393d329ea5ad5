"""Simple GRPO's two rewards for GSM8K, summed with weight 1 each.

Where this deviates: the answer is read as groupwise.answers.final reads it (from the tags where
there are some) and not simply as the last number of the text.
"""

from groupwise.answers.final import correct
from groupwise.answers.tags import think_answer_format


def answer(completion: str, answer: str) -> float:
    """1.0 for the right answer, -1.0 for a wrong one or none."""
    return 1.0 if correct(completion, answer) else -1.0


def form(completion: str) -> float:
    """1.25 for `<think>…</think><answer>…</answer>` and nothing else, otherwise -1.0."""
    return 1.25 if think_answer_format(completion) else -1.0
