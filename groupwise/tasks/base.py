"""What a task is: problems in three disjoint splits, and how to judge an answer to one.

A task is made by a function in a file of its own; `groupwise.tasks.catalog` maps `task.kind` to it.
The judges are plain functions that name the columns they want. Evaluation uses them, and the
rewards `correct` and `format` are these same functions, so a task brings its reward along.
They live in groupwise.rewards, so that a worker process can import them without the settings.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from groupwise.answers.tags import not_blank, think_answer_format
from groupwise.config.tasks import TaskSettings
from groupwise.errors import ConfigError, DataError, type_name
from groupwise.types import Message, Problem

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class OutOfTrain(tuple[Problem, ...]):
    """Stands for a split that is not given: its problems are taken out of `train`."""


@dataclass(frozen=True)
class Task:
    """Task("sums", problems), or with a judge: Task("sums", problems, is_right)

    def is_right(completion: str, answer: str) -> bool: ...    # `answer` is a column of the problem

    Without `validation` or `test`, one problem in ten goes from `train` to each, by a hash.
    """

    name: str
    train: Sequence[Problem]
    correct: Callable[..., Any] | None = None
    """Whether an answer is right (None: nobody can tell; rewards alone decide)."""
    _: KW_ONLY
    validation: Sequence[Problem] = OutOfTrain()
    test: Sequence[Problem] = OutOfTrain()
    formatted: Callable[..., Any] = not_blank
    """Whether an answer has the form that the prompt asks for."""
    extract: Callable[[str], str | None] = str.strip
    """The final answer in a text, in a form that equal answers share; None where there is none."""
    solve: Callable[[Problem], str | None] | None = None
    """A right final answer to a problem, for tests of rewards (None: its column `answer`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a Task's name must be text, not {self.name!r}")
        for split in SPLITS:
            _check_problems(self.name, split, getattr(self, split))
        for field, optional in _FUNCTIONS.items():
            _check_function(self.name, field, getattr(self, field), optional)
        given: dict[Split, list[Problem]] = {
            split: list(getattr(self, split))
            for split in SPLITS
            if not isinstance(getattr(self, split), OutOfTrain)
        }
        if len(given) < len(SPLITS):
            for split, problems in fill_splits(self.name, given).items():
                object.__setattr__(self, split, problems)


_FUNCTIONS = {"correct": True, "formatted": False, "extract": False, "solve": True}
"""The functions of a task, and whether None may stand in their place."""


def _check_problems(name: str, split: Split, problems: Any) -> None:
    example = 'groupwise.Problem("3+4", "3+4=", {"answer": "7"})'
    if isinstance(problems, str) or not isinstance(problems, Sequence):
        raise DataError(
            f"task {name}: {split} must be a list of problems such as {example}, "
            f"not {type_name(problems)}"
        )
    for position, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise DataError(
                f"task {name}: {split}[{position}] is {type_name(problem)}, "
                f"but must be a problem such as {example}; groupwise.data_task(rows) makes a task "
                "of dicts or a dataset"
            )


def _check_function(name: str, field: str, value: Any, optional: bool) -> None:
    if not callable(value) and not (optional and value is None):
        raise ConfigError(
            f"task {name}: {field} must be a function{' or None' if optional else ''}, "
            f"not {type_name(value)}"
        )


def split_of(key: str) -> Split:
    """Which split a problem belongs to, by a hash of what makes it that problem.

    8 in 10 go to train. No seed enters: a problem is never in two splits, whatever generated it.
    """
    bucket = hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 10
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


def fill_splits(
    name: str, problems: Mapping[Split, list[Problem]], *, seed: int = 0
) -> dict[Split, list[Problem]]:
    """All three splits: those given as they are, the missing ones out of train.

    A hash of the question decides, so equal questions stay together and a problem stays in its
    split when more are added. Only where there are so few that a split would stay empty, each
    missing one gets one question, in the order of the hash.
    """
    missing: list[Split] = [split for split in SPLITS if split not in problems]
    # Seed 0 adds nothing to the key: the split is then that of the question alone.
    salt = f"{seed}/" if seed else ""
    keys = {problem.id: salt + question(problem) for problem in problems["train"]}
    ordered = sorted(set(keys.values()), key=lambda key: hashlib.sha256(key.encode()).digest())
    if len(ordered) <= len(missing):
        raise DataError(
            f"{name} has {len(ordered)} different prompts, too few to hold any out for "
            f"{' and '.join(missing) or 'evaluation'}: add problems, or give these splits yourself "
            "(as validation.jsonl and test.jsonl beside train.jsonl, or as arguments of Task)"
        )
    where: dict[str, Split] = {key: split_of(key) for key in ordered}
    where = {key: split for key, split in where.items() if split in missing}
    if len(where) == len(ordered) or set(where.values()) != set(missing):
        where = dict(zip(ordered, missing, strict=False))
    filled: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
    for problem in problems["train"]:
        filled[where.get(keys[problem.id], "train")].append(problem)
    for split in SPLITS:
        if split != "train" and split in problems:
            filled[split] = problems[split]
    return filled


def question(problem: Problem) -> str:
    """What is asked, without the system prompt: changing that must not move a row's split."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(turn["content"] for turn in problem.prompt if turn["role"] != "system")


def dataset_task(
    name: str,
    problems: Mapping[Split, list[Problem]],
    settings: TaskSettings,
    *,
    correct: Callable[..., Any] | None,
    formatted: Callable[..., Any],
    extract: Callable[[str], str | None],
    seed: int = 0,
) -> Task:
    """The task of a dataset: missing splits filled, each cut to the size in the settings."""
    splits = cut(fill_splits(name, problems, seed=seed), settings)
    return Task(name, **splits, correct=correct, formatted=formatted, extract=extract, solve=None)


def tagged_task(
    name: str,
    splits: Mapping[Split, Sequence[Problem]],
    *,
    correct: Callable[..., Any],
    extract: Callable[[str], str | None],
    solve: Callable[[Problem], str | None] | None = None,
) -> Task:
    """A task whose answers are asked for in <think> and <answer> tags, with these splits."""
    form = think_answer_format
    return Task(name, **splits, correct=correct, formatted=form, extract=extract, solve=solve)


def cut(
    splits: Mapping[Split, Sequence[Problem]], settings: TaskSettings
) -> dict[Split, Sequence[Problem]]:
    """Each split at the size in the settings, by the name that it has in `Task`."""
    train, held_out = settings.train_size, settings.test_size
    return {name: split[: train if name == "train" else held_out] for name, split in splits.items()}


def conversation(
    question: str, system: str | None, default: str, examples: Sequence[Message] = ()
) -> tuple[Message, ...]:
    """The system prompt (None: `default`; "": none at all), worked examples, and the question."""
    system = default if system is None else system
    opening = ({"role": "system", "content": system},) if system else ()
    return (*opening, *examples, {"role": "user", "content": question.strip()})
