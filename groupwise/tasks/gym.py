"""Any task of reasoning-gym by name: `task: gym:countdown`.

reasoning-gym generates the problems and judges the answers; answers are asked for in tags. Equal
questions are one problem, and a hash of the question says which split it is in, so the splits are
disjoint. `groupwise.rewards.gym` judges: `correct` is full marks, the reward `gym` is the score
itself, with its partial credit.
"""

import json
from collections.abc import Mapping
from typing import Any

from groupwise.config.tasks import GymTask
from groupwise.errors import DataError
from groupwise.rewards.gym import correct, dataset_of, extract
from groupwise.tasks.base import SPLITS, Split, Task, split_of, tagged_task
from groupwise.tasks.generated import split_sizes
from groupwise.types import Problem

ASK = (
    "Work it out in <think> </think>, then give the final answer alone in <answer> </answer>, "
    "in exactly the form that was asked for."
)


def build(settings: GymTask) -> Task:
    wanted = split_sizes(settings)
    # 8 in 10 questions go to train and 1 in 10 to each of the others; some come twice.
    size = 2 * max(wanted["train"], 8 * wanted["test"]) + 1000
    problems = _draw(settings, wanted, size)
    for split in SPLITS:
        if len(problems[split]) < wanted[split]:
            raise DataError(
                f"reasoning-gym's {settings.name} gave only {len(problems[split])} different "
                f"{split} problems of {wanted[split]}: lower task.train_size "
                f"({wanted['train']}) or task.test_size ({wanted['test']}), or widen task.options"
            )
    return tagged_task(f"gym:{settings.name}", problems, correct=correct, extract=extract)


def _draw(settings: GymTask, wanted: Mapping[Split, int], size: int) -> dict[Split, list[Problem]]:
    problems: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
    dataset = dataset_of(
        settings.name, settings.seed, size, json.dumps(settings.options, sort_keys=True)
    )
    seen: set[str] = set()
    for index in range(size):
        if all(len(problems[split]) == wanted[split] for split in SPLITS):
            break
        entry = dataset[index]
        question = str(entry["question"]).strip()
        split = split_of(question)
        if question in seen or len(problems[split]) == wanted[split]:
            continue
        seen.add(question)
        problems[split].append(_problem(settings, question, entry["answer"], size, index))
    return problems


def _problem(settings: GymTask, question: str, answer: Any, size: int, index: int) -> Problem:
    columns: dict[str, Any] = {
        "question": question,
        "gym": {
            "name": settings.name,
            "seed": settings.seed,
            "size": size,
            "index": index,
            "options": settings.options,
        },
    }
    if answer is not None:  # some tasks can judge an answer and know none themselves
        columns["answer"] = str(answer)
    return Problem(
        id=f"gym/{settings.name}/{settings.seed}/{index}",
        prompt=({"role": "user", "content": f"{question}\n\n{ASK}"},),
        columns=columns,
        prefill=settings.prefill,
    )
