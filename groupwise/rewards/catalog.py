"""Rewards by name: the built-in ones, and how a name in a recipe becomes a function.

`correct` and `format` are not in the dict below: they are the task's own judges. Nor is
`model:FOLDER`, a reward model: groupwise.load makes a reward of it.
"""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.errors import RewardError

BUILTIN = {
    "answer": "groupwise.rewards.answers:correct",
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


def resolve(name: str, base_folder: Path | str | None = None) -> str:
    """Where the function of that name is: `package.module:function` or `/path/file.py:function`.

    Files are looked up from `base_folder` (None: the current folder). The code is not run here.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        known = [*BUILTIN, *TASKS_OWN]
        raise RewardError(
            f"there is no reward {name!r}{_nearest(name, known)}. "
            f"Built in are: {', '.join(known)}. "
            "Your own is file.py:function or package.module:function; a reward model, model:FOLDER"
        )
    if not place or not function.isidentifier():
        raise RewardError(f"reward {name!r} must be file.py:function or package.module:function")
    if not place.endswith(".py"):
        return name
    folder = Path(base_folder) if base_folder is not None else Path.cwd()
    file = (folder / Path(place).expanduser()).resolve()
    if not file.is_file():
        others = [other.name for other in file.parent.glob("*.py")]
        raise RewardError(
            f"reward {name!r}: there is no file {file}{_nearest(file.name, others)}. "
            "The path counts from the folder where the command is run"
        )
    return f"{file}:{function}"


def load(reference: str) -> Callable[..., Any]:
    """The function that a resolved name says. Runs the user's module."""
    place, _, name = reference.rpartition(":")
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(
            f"reward {reference!r}: importing {place} raised {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        functions = [n for n, value in vars(module).items() if callable(value)]
        raise RewardError(
            f"reward {reference!r}: {place} has no function {name!r}{_nearest(name, functions)}"
        )
    if not callable(function):
        raise RewardError(f"reward {reference!r} is a {type(function).__name__}, not a function")
    return function


def _named_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise RewardError(
            f"there is no module {error.name!r}: install it, or write the path of a file "
            "(my_rewards.py:function)"
        ) from None


def _file_module(file: Path) -> ModuleType:
    if not file.is_file():
        raise RewardError(f"there is no file {file}")
    digest = hashlib.blake2b(str(file.resolve()).encode(), digest_size=4).hexdigest()
    name = f"groupwise_reward_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        # So that the file may import its neighbours, as it could if it were run as a script.
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
