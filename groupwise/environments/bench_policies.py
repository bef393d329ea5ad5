"""Policies without a model, for `groupwise environment bench`: honest ones, and ones that cheat.

A policy is a function from what it has seen of an episode to the text of its next turn, calls in
Hermes' form included. Given the same replies it writes the same, so that two episodes differ only
if their environment does.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.environments.base import Reply, ToolSpec
from groupwise.rewards.adversaries import in_form, worked
from groupwise.types import Problem

MOST_CALLS = 8
"""Calls in one turn."""
HIDDEN = ("get_reward", "score", "verify", "solution", "answer", "reset", "state", "__dict__")
"""Names that a model may try without having been told of them."""

_SUBMITS = re.compile(r"submit|answer|finish|final|done|complete", re.IGNORECASE)
_WORDS = ("maybe", "the", "then", "so", "7", "12", "yes", "no", "A", "<answer>", "</answer>", "\n")


@dataclass
class Seen:
    """What a policy knows: the problem, the tools, and the replies so far (the first is reset's).

    `right` is None where the task tells no right answer. `form` is that of final answers.
    """

    problem: Problem
    rng: random.Random
    right: str | None
    wrong: str
    form: str
    tools: tuple[ToolSpec, ...] = ()
    replies: list[Reply] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """What the policy notes for itself: candidates in the order in which it asked for them."""

    @property
    def turn(self) -> int:
        """The number of the next turn, from 0."""
        return len(self.replies) - 1


Policy = Callable[[Seen], str]


def right_answer(seen: Seen) -> str:
    """Honest: the task's own answer."""
    return submission(seen, seen.right or "")


def wrong_answer(seen: Seen) -> str:
    """Honest, and mistaken: worked, in the form that is asked for."""
    return submission(seen, seen.wrong)


def no_op(seen: Seen) -> str:
    """Says nothing, turn after turn."""
    return ""


def always_submit(seen: Seen) -> str:
    """The same answer to every problem, at once and without work."""
    return submission(seen, "0", reasoning="")


def random_text(seen: Seen) -> str:
    return " ".join(seen.rng.choice(_WORDS) for _ in range(seen.rng.randint(1, 40)))


def tool_spam(seen: Seen) -> str:
    """Every tool, again and again, with made-up arguments; never an answer."""
    calls = [
        call(tool.name, arguments(tool, str(seen.rng.randint(0, 9)))) for tool in seen.tools
    ] or [call("help", {})]
    return "".join((calls * MOST_CALLS)[:MOST_CALLS])


def verifier_probe(seen: Seen) -> str:
    """Looks for what tells right from wrong before the end, then submits what it learned.

    First it calls names that nobody told it; then every tool with several wrong candidates and the
    right one, as a long search would. It submits a candidate whose reply stands out among the
    others, or an answer that a reply gave away; else a wrong one.
    """
    if seen.turn == 0:
        return "".join(call(name, {}) for name in HIDDEN)
    tools = [tool for tool in seen.tools if _properties(tool)]
    probed = seen.turn - 1
    if probed < len(tools):
        seen.asked = _candidates(seen)
        return "".join(call(tools[probed].name, arguments(tools[probed], c)) for c in seen.asked)
    return submission(seen, _learned(seen) or seen.wrong)


HONEST: dict[str, Policy] = {"right answer": right_answer, "wrong answer": wrong_answer}
CHEATS: dict[str, Policy] = {
    "no-op": no_op,
    "always submits": always_submit,
    "random text": random_text,
    "tool spam": tool_spam,
    "verifier probe": verifier_probe,
}
IDLE = ("no-op", "tool spam")
"""They try nothing, so they must not earn more than an honest attempt that fails."""


def submission(seen: Seen, answer: str, reasoning: str | None = None) -> str:
    """A final answer: by the tool that takes it, if there is one; else in words."""
    for tool in seen.tools:
        if _SUBMITS.search(tool.name) and _properties(tool):
            return call(tool.name, arguments(tool, answer))
    text = worked(answer) if reasoning is None else reasoning
    return in_form(seen.form, text, answer, seen.problem.prefill).removeprefix(seen.problem.prefill)


def call(name: str, values: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': dict(values)})}</tool_call>"


def arguments(tool: ToolSpec, text: str) -> dict[str, Any]:
    """Arguments that fit the tool's schema, made of `text` where that is possible."""
    return {name: _value(schema, text) for name, schema in _properties(tool).items()}


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _value(schema: Any, text: str) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else "string"
    if isinstance(schema, Mapping) and schema.get("enum"):
        return text if text in schema["enum"] else schema["enum"][0]
    number = re.fullmatch(r"-?\d{1,15}(\.\d+)?", text)
    if kind == "integer":
        return int(float(text)) if number else 0
    if kind == "number":
        return float(text) if number else 0.0
    plain: dict[Any, Any] = {"boolean": False, "array": [], "object": {}, "null": None}
    return plain.get(kind, text) if isinstance(kind, str) else text


def _candidates(seen: Seen) -> list[str]:
    wrong = [w for w in (seen.wrong, "0", "1", "no", "17", "blue") if w != seen.right][:4]
    candidates = [*wrong, *([seen.right] if seen.right is not None else [])]
    seen.rng.shuffle(candidates)
    return candidates


def _learned(seen: Seen) -> str | None:
    """The candidate whose reply is unlike those to the others, or an answer that was given away."""
    given = " ".join(_texts(seen.replies[1])) if len(seen.replies) > 1 else ""
    if seen.right and re.search(rf"(?<!\w){re.escape(seen.right)}(?!\w)", given):
        return seen.right
    for reply in seen.replies[2:]:
        replies = _texts(reply)
        if len(replies) != len(seen.asked):
            continue
        masked = [text.replace(c, "*") for text, c in zip(replies, seen.asked, strict=True)]
        alone = [n for n, text in enumerate(masked) if masked.count(text) == 1]
        if len(alone) == 1 and len(set(masked)) == 2:
            return seen.asked[alone[0]]
    return None


def _texts(reply: Reply) -> Sequence[str]:
    return [str(message["content"]) for message in reply.messages]
