"""reasoning-gym's own score of an answer: the reward `gym`, and the judge of its tasks.

A problem carries only its index: the judge generates it again, with all that reasoning-gym knows
about it.

Some of its tasks pass the answer to Python's `eval` or to sympy's parser, which evaluates too.
Model output is hostile, so for those an answer must first look like what they expect: a list of
plain values, or a formula of numbers, single letters and named functions without high powers.
"""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from groupwise.answers.tags import tag_content
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.extensions import nearest

MAX_ANSWER = 4000
MAX_FORMULA = 300

_LITERAL = re.compile(r"[\w\s,.\[\]'\"#+-]*", re.ASCII)
_FORMULA = re.compile(r"[\w\s+\-*/^().,=]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]+")
_FUNCTION_NAMES = "sin cos tan exp log ln sqrt asin acos atan sinh cosh tanh Abs pi"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")
_POWER = re.compile(r"\*\*|\^")
_LOW_POWER = re.compile(  # one or two digits, or a fraction of such, and no power of a power
    r"(?:\*\*|\^)\s?(?:\(\s?-?\s?[0-9]{1,2}(?:\s?/\s?[0-9]{1,2})?\s?\)|-?[0-9]{1,2}(?![0-9.]))"
    r"(?!\s?(?:\*\*|\^))"
)
_OF_PARENTHESES = re.compile(r"\)\s*(?:\*\*|\^)")


def correct(completion: str, gym: Mapping[str, Any]) -> bool:
    """Whether reasoning-gym gives the answer full marks."""
    return score(completion, gym) >= 1.0


def score(completion: str, gym: Mapping[str, Any]) -> float:
    """reasoning-gym's own score of the answer, from 0 to 1."""
    given = extract(completion)
    if given is None:
        return 0.0
    options = json.dumps(gym["options"], sort_keys=True)
    dataset = dataset_of(gym["name"], gym["seed"], gym["size"], options)
    if not harmless(given, _evaluates(type(dataset).__module__)):
        return 0.0
    entry = _entry(gym["name"], gym["seed"], gym["size"], options, gym["index"])
    try:
        return min(max(float(dataset.score_answer(given, entry)), 0.0), 1.0)
    except Exception:  # whatever its parser raises on odd text: that is not the right answer
        return 0.0


def extract(completion: str) -> str | None:
    """What stands in the only <answer> pair; None where there is nothing, or too much."""
    content = (tag_content(completion, "answer") or "").strip()
    return content if 0 < len(content) <= MAX_ANSWER else None


def harmless(answer: str, evaluated_as: str | None) -> bool:
    """Whether an answer may be given to a judge that evaluates it as a "literal" or a "formula"."""
    if evaluated_as is None:
        return True
    if "__" in answer:
        return False
    if evaluated_as == "literal":
        return _LITERAL.fullmatch(answer) is not None
    names = [name for name in _NAME.findall(answer) if len(name) > 1]
    return (
        len(answer) <= MAX_FORMULA
        and _FORMULA.fullmatch(answer) is not None
        and _FUNCTIONS.issuperset(names)
        and not _ATTRIBUTE.search(answer)
        and len(_POWER.findall(answer)) == len(_LOW_POWER.findall(answer))
        and len(_OF_PARENTHESES.findall(answer)) <= 2
    )


@lru_cache(32)
def dataset_of(name: str, seed: int, size: int, options: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingExtraError("reasoning-gym", "gym") from error
    if name not in DATASETS:
        known = nearest(name, DATASETS) or f"; it has: {', '.join(sorted(DATASETS))}"
        raise ConfigError(f"reasoning-gym has no task {name!r}{known}")
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(options))
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"task.options of reasoning-gym's {name}: {error}") from error


@lru_cache(4096)
def _entry(name: str, seed: int, size: int, options: str, index: int) -> Any:
    return dataset_of(name, seed, size, options)[index]


@lru_cache(256)
def _evaluates(module: str) -> str | None:
    """How the tasks of a module evaluate answers, by a look at its code; None if they do not."""
    source = inspect.getsource(sys.modules[module])
    if "sympy" in source and "parse_expr(" in source:
        return "formula"
    return "literal" if re.search(r"\beval\(", source) else None
