"""Rows of a dataset as problems: the prompt, and every other column for rewards."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from datasets import Dataset, IterableDataset

from groupwise.errors import ConfigError, DataError, type_name
from groupwise.types import Problem, Prompt

PROMPT = "prompt"
PICTURES = ("image", "images", "pixel_values")
EMPTY: Prompt = ({"role": "user", "content": ""},)
"""Where an environment gives the question."""


def problems_of(
    rows: Iterable[Mapping[str, Any]], *, prefix: str = "", prompts_needed: bool, columns: bool
) -> list[Problem]:
    """`columns=False` (remove_unused_columns) leaves the prompt alone."""
    problems = []
    for number, row in enumerate(rows):
        pictures = [name for name in PICTURES if row.get(name) is not None]
        if pictures:
            raise DataError(
                f"the dataset has a column {pictures[0]!r}: groupwise trains models of text alone"
            )
        if PROMPT not in row and prompts_needed:
            raise DataError(
                f"the dataset has no column 'prompt'; its columns are: {', '.join(map(str, row))}"
            )
        prompt = _prompt(row[PROMPT], number) if PROMPT in row else EMPTY
        rest = {name: value for name, value in row.items() if name != PROMPT} if columns else {}
        problems.append(Problem(f"{prefix}{number}", prompt, rest))
    if not problems:
        raise DataError("the dataset is empty")
    return problems


def _prompt(value: Any, number: int) -> Prompt:
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not all(_is_message(turn) for turn in value):
        raise DataError(
            f"row {number}: the prompt must be text, or a list of messages such as "
            f'{{"role": "user", "content": "..."}}, not {str(value)[:80]}'
        )
    if value and value[-1]["role"] == "assistant":
        raise DataError(f"row {number}: the prompt ends with the assistant's turn, not a question")
    return tuple(value)


def _is_message(turn: Any) -> bool:
    return (
        isinstance(turn, Mapping)
        and isinstance(turn.get("role"), str)
        and isinstance(turn.get("content"), str)
    )


def train_rows(
    dataset: Any, *, seed: int, shuffled: bool, wanted: int
) -> tuple[Iterable[Mapping[str, Any]], bool]:
    """The rows, and whether they are to be drawn in their order. Of a stream, as many as a run
    of `wanted` draws reads, shuffled through a buffer as TRL does."""
    if isinstance(dataset, IterableDataset):
        stream = dataset.shuffle(seed=seed) if shuffled else dataset
        return list(islice(stream, wanted)), True
    return dataset, not shuffled


def checked_train_dataset(dataset: Any, factories: Any, max_steps: int, prompts: int) -> Any:
    """The dataset; where an environment owns the data, rows that only ask it for its question."""
    if dataset is None:
        if factories is None:
            raise DataError("`train_dataset` is required unless an `environment_factory` is given")
        if isinstance(factories, Mapping):
            raise DataError(
                "several environments by name: this requires a `train_dataset` whose column "
                "`environment` names one for each row"
            )
        if max_steps <= 0:
            raise ConfigError(
                "without a train_dataset the environment gives the questions, and nothing says how "
                "many: set GRPOConfig(max_steps=...)"
            )
        return Dataset.from_dict({PROMPT: [[dict(EMPTY[0])]] * prompts})  # pyright: ignore
    if not isinstance(dataset, Dataset | IterableDataset):
        raise TypeError(
            f"train_dataset must be a Dataset or IterableDataset, not {type_name(dataset)}"
        )
    return dataset
