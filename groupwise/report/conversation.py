"""An episode to read: who said what, which tools were called, what each turn earned."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.types import Completion, Episode, StopReason

ENDS: dict[StopReason, str] = {
    "eos": "ended by itself",
    "stop": "ended by a stop string",
    "length": "cut off by the length limit",
    "turns": "ended by the limit on turns",
    "environment": "ended by its environment's failure",
}


@dataclass(frozen=True)
class Said:
    """Said("assistant", "Let me add.\\ncalls add(a=3, b=4)", turn=0) or Said("tool add", "7")

    `turn` counts the model's own turns from 0. None: the environment said it.
    """

    role: str
    text: str
    turn: int | None = None


def conversation(episode: Episode) -> list[Said]:
    """What was said behind the problem's prompt, in order."""
    said, turns = [], 0
    for message in episode.messages:
        role, name = str(message.get("role", "")), message.get("name")
        if role == "assistant":
            said.append(Said(role, _with_calls(message), turns))
            turns += 1
        else:
            said.append(Said(f"{role} {name}" if name else role, _content(message)))
    return said


def answer_text(completion: Completion) -> str:
    """An answer in plain text: an episode as a conversation, any other as it is."""
    episode = completion.episode
    if episode is None:
        return completion.text
    lines = [
        f"{said.role}{'' if said.turn is None else _turn(episode, said.turn)}: {said.text}"
        for said in conversation(episode)
    ]
    return "\n".join([*lines, f"({ending(completion)})"])


def answer_tokens(completion: Completion) -> int:
    """How many the policy sampled for the whole answer, over all segments of an episode."""
    return sum(completion.episode.turns) if completion.episode else completion.length


def ending(completion: Completion) -> str:
    """How an episode ended, and what its environment said of it."""
    episode = completion.episode
    assert episode is not None
    parts = [ENDS.get(completion.stop, completion.stop)]
    if episode.error:
        parts.append(episode.error)
    parts += [
        f"{name} {'does not apply' if score is None else f'{score:g}'}"
        for name, score in episode.scores.items()
    ]
    if episode.malformed:
        parts.append(f"{episode.malformed} of {episode.calls} calls could not be read")
    if episode.segments > 1:
        parts.append(f"{episode.segments} segments, as the chat template rewrites the past")
    return "; ".join(parts)


def _turn(episode: Episode, number: int) -> str:
    """[turn 2, 31 tokens, reward 0.5]"""
    parts = [f"turn {number + 1}"]
    if number < len(episode.turns):
        parts.append(f"{episode.turns[number]} tokens")
    reward = episode.rewards[number] if number < len(episode.rewards) else None
    if reward is not None:
        parts.append(f"reward {reward:g}")
    return f" [{', '.join(parts)}]"


def _with_calls(message: Mapping[str, Any]) -> str:
    calls = [f"calls {_call(call)}" for call in message.get("tool_calls") or ()]
    text = _content(message)
    return "\n".join([*([text] if text or not calls else []), *calls])


def _call(call: Any) -> str:
    """add(a=3, b=4)"""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return str(call)
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        values = (f"{name}={json.dumps(value)}" for name, value in arguments.items())
        return f"{function.get('name')}({', '.join(values)})"
    return f"{function.get('name')}({arguments})"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return "" if content is None else str(content)
