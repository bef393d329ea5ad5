"""Rewards with a flaw each, for the tests of the bench. Imports nothing: workers load it."""


def counts_numbers(completion: str) -> float:
    return sum(character.isdigit() for character in completion)


def holds_the_answer(completion: str, answer: str) -> float:
    return float(answer in completion)


def counts_tags(completion: str) -> float:
    return completion.count("<answer>") + completion.count("</answer>")


def believes(completion: str) -> float:
    return float("score: 10" in completion)


def longer_is_better(completion: str) -> float:
    return len(completion) / 1000


def fails_on_huge(completion: str) -> float:
    if len(completion) > 50_000:
        raise ValueError("too long")
    return float("</answer>" in completion)
