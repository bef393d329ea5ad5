"""Rewards by name: the built-in ones, and how a name in a recipe becomes a function.

`correct` and `format` are not in the dict below: they are the task's own judges. Nor is
`model:FOLDER`, a reward model: groupwise.load makes a reward of it.
"""

from pathlib import Path

from groupwise.errors import ConfigError, RewardError
from groupwise.extensions import existing_file, nearest

BUILTIN = {
    "answer": "groupwise.answers.final:correct",
    "think_answer": "groupwise.rewards.format:think_answer",
    "tags": "groupwise.rewards.format:tags",
    "cookbook_format": "groupwise.rewards.cookbook:exact_format",
    "cookbook_tags": "groupwise.rewards.cookbook:approximate_format",
    "cookbook_answer": "groupwise.rewards.cookbook:answer",
    "cookbook_number": "groupwise.rewards.cookbook:number",
    "nano_format": "groupwise.rewards.countdown:nano_format",
    "grpo_zero_format": "groupwise.rewards.countdown:zero_format",
    "equation": "groupwise.rewards.countdown:equation",
    "simple_grpo_answer": "groupwise.rewards.simple_grpo:answer",
    "simple_grpo_format": "groupwise.rewards.simple_grpo:form",
    "lm_book_answer": "groupwise.rewards.lm_book:answer",
    "lm_book_format": "groupwise.rewards.lm_book:form",
    "heuristic": "groupwise.rewards.heuristics:heuristic",
    "reasoned": "groupwise.rewards.heuristics:reasoned",
    "cot_bonus": "groupwise.rewards.cot:cot_bonus",
    "reasoning_quality": "groupwise.rewards.cot:reasoning_quality",
    "step_clarity": "groupwise.rewards.cot:step_clarity",
    "repetition": "groupwise.rewards.limits:repetition",
    "language": "groupwise.rewards.limits:language",
    "length_limits": "groupwise.rewards.limits:length_limits",
    "code_output": "groupwise.rewards.code:code_output",
    "code_tests": "groupwise.rewards.code:code_tests",
    "judge": "groupwise.rewards.judge:judge",
    "gym": "groupwise.rewards.gym:score",
}

TASKS_OWN = ("correct", "format")


def resolve(name: str) -> str:
    """Where the function of that name is: `package.module:function` or `/path/file.py:function`.

    Paths of files are relative to the current folder. The code is not run here.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    module, colon, function = name.rpartition(":")
    if not colon:
        known = [*BUILTIN, *TASKS_OWN]
        raise RewardError(
            f"there is no reward {name!r}{nearest(name, known)}. "
            f"Built in are: {', '.join(known)}. "
            "Your own is file.py:function or package.module:function; a reward model, model:FOLDER"
        )
    if not module or not function.isidentifier():
        raise RewardError(f"reward {name!r} must be file.py:function or package.module:function")
    if not module.endswith(".py"):
        return name
    try:
        file = existing_file(Path(module))
    except ConfigError as error:
        raise RewardError(f"reward {name!r}: {error}") from error
    return f"{file}:{function}"
