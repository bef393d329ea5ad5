"""Rewards by the looks of an answer, and one that joins them with the truth.

`heuristic` never sees the right answer: it bootstraps a form, and a model trained on it alone gets
better at looking right. Use `correct` beside it, or `reasoned`, where the truth outweighs looks.
"""

from groupwise.answers.final import correct
from groupwise.rewards.cot import calculations, numbered_steps, reasoning_quality

_SEQUENCE = ("first", "then", "next", "finally", "therefore")


def heuristic(completion: str, least: int = 20, most: int = 500) -> float:
    """0.25 each for: holds a number; shows arithmetic, all of it right; has `least` to `most`
    characters; is in steps (two numbered ones, or two words such as first, then, finally)."""
    text = completion[: 4 * most]
    lowered = text.lower()
    verdicts = calculations(text)
    signs = (
        any(character.isdigit() for character in text),
        bool(verdicts) and all(verdicts.values()),
        least <= len(completion.strip()) <= most,
        numbered_steps(text) >= 2 or sum(word in lowered for word in _SEQUENCE) >= 2,
    )
    return sum(signs) / 4


def reasoned(completion: str, answer: str, brief: int = 400, long: int = 2000) -> float:
    """Correctness 1.0 + reasoning 0.5 + brevity 0.1, each as far as it is earned: 0 to 1.6.

    Reasoning is groupwise.rewards.cot.reasoning_quality. Brevity is full up to `brief` characters
    and falls to nothing at `long`. Without a word there is neither. A wrong answer earns at most
    0.6, less than any right one.
    """
    if not completion.strip():
        return 0.0
    brevity = min(max((long - len(completion)) / max(long - brief, 1), 0.0), 1.0)
    right = float(correct(completion, answer))
    return right + 0.5 * reasoning_quality(completion) + 0.1 * brevity
