"""Multiple choice: how options are shown, and which one an answer chooses.

Asked for is the letter in <answer> tags. Read is also the letter with what it stands for, or that
alone where exactly one option says it; without tags, the last place where the text says what the
answer is. Two letters are none: the writer has not decided.
"""

import re
from collections.abc import Mapping, Sequence

from groupwise.config import DatasetTask
from groupwise.rewards.answers import TAIL, final_answer, same_answer
from groupwise.rewards.quantities import last_number
from groupwise.rewards.tags import think_answer_format
from groupwise.tasks.base import Split, Task, fill_splits
from groupwise.types import Message, Problem

LETTERS = "ABCDEFGHIJ"

SYSTEM = (
    "You solve multiple choice problems. Think step by step between <think> and </think>, "
    "then give the letter of the right choice alone between <answer> and </answer>."
)

_LETTER = r"(?<![A-Za-z0-9'’])([A-J])(?![A-Za-z0-9'’+*/=^])"
_SAYS = re.compile(
    r"\b(?:answer|ans|option|choice)\b[ \t]{0,3}(?:is|are|(?:will|should|must|would) be)?[ \t]{0,3}"
    rf"(?:option|choice)?[\s:=,.\-–—>(\[*]{{0,8}}{_LETTER}(?! [a-z])",
    re.IGNORECASE,
)
_SAID = re.compile(
    rf"{_LETTER}\)? (?:is|was|must be) (?:the |our )?(?:correct|right|true|answer|best)",
    re.IGNORECASE,
)
_LONE = re.compile(rf"\n[ \t(\[*]{{0,4}}{_LETTER}[ \t)\].*]{{0,4}}$")


def task_of(name: str, problems: Mapping[Split, list[Problem]], settings: DatasetTask) -> Task:
    splits = fill_splits(name, problems)
    return Task(
        name=name,
        train=splits["train"][: settings.train_size],
        validation=splits["validation"][: settings.test_size],
        test=splits["test"][: settings.test_size],
        correct=correct,
        formatted=formatted,
        extract=extract,
    )


def problem_of(
    name: str,
    question: str,
    options: Sequence[str],
    letter: str,
    solution: str,
    settings: DatasetTask,
) -> Problem:
    """The problem that shows the options under their letters, one a line."""
    lines = [f"{known}) {text}" for known, text in zip(LETTERS, options, strict=False)]
    asked = "\n".join([question.strip(), "", *lines])
    system = SYSTEM if settings.system is None else settings.system
    turns: tuple[Message, ...] = ({"role": "user", "content": asked},)
    if system:
        turns = ({"role": "system", "content": system}, *turns)
    columns = {
        "question": question,
        "options": list(options),
        "answer": letter,
        "solution": solution,
    }
    return Problem(name, turns, columns, settings.prefill)


def correct(completion: str, answer: str, options: Sequence[str]) -> bool:
    """Whether the completion chooses the option whose letter is `answer`."""
    return chosen(completion, options) == answer


def formatted(completion: str) -> bool:
    """Whether an answer is <think>...</think><answer>...</answer> and nothing else."""
    return think_answer_format(completion)


def extract(completion: str) -> str | None:
    """The letter that a text chooses, for voting; None where it chooses none."""
    return chosen(completion, ())


def chosen(text: str, options: Sequence[str]) -> str | None:
    """The letter of the option that a text chooses; None if it chooses none, or several."""
    letters = LETTERS[: len(options)] if options else LETTERS
    marked = "\\boxed" in text or ("<answer>" in text and "</answer>" in text)
    if marked:
        return _option(final_answer(text) or "", letters, options)
    tail = "\n" + text[-TAIL:].rstrip()
    found = [m for pattern in (_SAYS, _SAID, _LONE) for m in pattern.finditer(tail)]
    if found:
        letter = max(found, key=lambda match: match.start(1))[1].upper()
        return letter if letter in letters else None
    return _option(final_answer(text) or "", letters, options) or _option(
        last_number(tail) or "", "", options
    )


def _option(given: str, letters: str, options: Sequence[str]) -> str | None:
    """The option that a short text names, by its letter or else by what it says."""
    named = [letter for letter in letters if same_answer(given, letter)]
    if not named:
        named = [
            letter
            for letter, text in zip(LETTERS, options, strict=False)
            if same_answer(given, text)
        ]
    return named[0] if len(named) == 1 else None
