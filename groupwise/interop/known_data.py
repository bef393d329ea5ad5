"""Hub datasets that are tasks of ours: `groupwise import` writes the task, which knows columns,
splits and the judge, instead of `kind: hub` with columns to be named."""

from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "openai/gsm8k": {"kind": "gsm8k"},
    "deepmind/aqua_rat": {"kind": "aqua_rat"},
    "allenai/math_qa": {"kind": "mathqa"},
    "DigitalLearningGmbH/MATH-lighteval": {"kind": "math"},
    "hendrycks/competition_math": {"kind": "math"},
    "Jiayi-Pan/Countdown-Tasks-3to4": {
        "kind": "countdown",
        "path": "Jiayi-Pan/Countdown-Tasks-3to4",
    },
}
OLD_NAMES = {"gsm8k": "openai/gsm8k", "aqua_rat": "deepmind/aqua_rat", "math_qa": "allenai/math_qa"}
"""What the hub called them before datasets had owners."""
WITH_ANSWERS = "the task's own judge reads its answers"


def task_of_dataset(
    name: str, config: str | None, split: str | None, *, judged: bool
) -> tuple[dict[str, Any], str]:
    """The task that a dataset's name means, and a line about it.

    `judged`: rewards of the user's judge its answers, so that no column of right ones is needed.
    """
    known = TASKS.get(OLD_NAMES.get(name, name))
    if known is not None:
        return dict(known), f"task: {name} is task.kind={known['kind']}; {WITH_ANSWERS}"
    task: dict[str, Any] = {"kind": "hub", "path": name, "prompt": "prompt"}
    task |= {"answer": None} if judged else {}
    task |= {"name": config} if config else {}
    task |= {"train_split": split} if split else {}
    return task, (
        f"task: TRL reads the column `prompt` of {name}, and so does this; task.prompt names "
        "another, and task.answer the column of right answers, if there is one"
    )
