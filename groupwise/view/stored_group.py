"""One line of a rollout file, read without trust: a field that is missing or odd is left empty.

`group_from_json` rebuilds exactly what was stored, for training. This reads what can be shown of
files that may be of another version, cut off, or made by somebody else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.view.jsonl_tail import parse_object
from groupwise.view.untrusted import finite, mapping, mean

# The first of these that a run scores says whether an answer is right.
VERDICTS = ("correct", "answer", "accuracy")


class Unreadable(Exception):
    """Something stored that cannot be shown; the message says what and why."""


@dataclass(frozen=True)
class StoredMessage:
    """StoredMessage("assistant", "Let me add.", calls=(("add", '{"a": 3, "b": 4}'),), turn=0)"""

    role: str
    content: str
    name: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    turn: int | None = None
    """Which turn of the model it is; None for what was said to it."""


@dataclass(frozen=True)
class StoredEpisode:
    """What happened beside the tokens of an answer that was a conversation."""

    messages: tuple[StoredMessage, ...]
    turns: tuple[int, ...]
    """Tokens that the model wrote in each turn."""
    rewards: tuple[float | None, ...]
    scores: Mapping[str, float | None]
    numbers: Mapping[str, float | None]
    error: str


@dataclass(frozen=True)
class StoredAnswer:
    index: int
    text: str
    stop: str
    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    old_logprobs: tuple[float | None, ...]
    old_entropies: tuple[float | None, ...]
    ref_logprobs: tuple[float | None, ...]
    reward: float | None
    advantage: float | None
    """The mean, where credit was given by token."""
    scores: Mapping[str, float | None]
    advantages: tuple[float | None, ...] = ()
    """One for each token, where credit was given so."""
    sampled: tuple[bool, ...] = ()
    """Which tokens the policy wrote; empty: all of them."""
    episode: StoredEpisode | None = None
    segment: int = 0
    """Above 0: this goes on with the answer before it, whose past the chat template rewrote."""

    @property
    def all_text(self) -> str:
        """Everything that was said in it, to be searched."""
        said = () if self.episode is None else self.episode.messages
        calls = [f"{name} {arguments}" for m in said for name, arguments in m.calls]
        return "\n".join([self.text, *(m.content for m in said), *calls])

    @property
    def length(self) -> int:
        """Tokens that the policy wrote."""
        return len(self.tokens) if not self.sampled else sum(self.sampled)

    @property
    def right(self) -> bool | None:
        """Whether it was judged right; None when no reward of the run judges that."""
        verdict = next((self.scores[name] for name in VERDICTS if name in self.scores), None)
        return None if verdict is None else verdict > 0.5


@dataclass(frozen=True)
class StoredGroup:
    index: int
    problem: str
    prompt: str
    prefill: str
    columns: Mapping[str, Any]
    answers: tuple[StoredAnswer, ...]

    @property
    def whole_answers(self) -> list[StoredAnswer]:
        """An episode in several segments is one answer: the first stands for all."""
        return [answer for answer in self.answers if answer.segment == 0]

    def segments(self, answer: StoredAnswer) -> list[int]:
        """The places of the segments that an answer consists of."""
        places = [answer.index]
        for later in self.answers[answer.index + 1 :]:
            if later.segment == 0:
                break
            places.append(later.index)
        return places

    @property
    def rewards(self) -> list[float]:
        return [answer.reward for answer in self.answers if answer.reward is not None]

    @property
    def has_spread(self) -> bool:
        return len(self.rewards) > 1 and max(self.rewards) - min(self.rewards) > 1e-8


def stored_group(line: bytes, index: int) -> StoredGroup:
    data = parse_object(line)
    if data is None:
        raise Unreadable(f"group {index} is no JSON object")
    problem = mapping(data.get("problem"))
    scores = {str(n): _numbers(v) for n, v in mapping(data.get("scores")).items()}
    rewards, advantages = _numbers(data.get("rewards")), _list(data.get("advantages"))
    answers = tuple(
        _answer(i, mapping(c), _at(rewards, i), _at(advantages, i), scores)
        for i, c in enumerate(_list(data.get("completions")))
    )
    return StoredGroup(
        index=index,
        problem=_text(problem.get("id")),
        prompt=prompt_text(problem.get("prompt")),
        prefill=_text(problem.get("prefill")),
        columns=mapping(problem.get("columns")),
        answers=answers,
    )


def prompt_text(prompt: Any) -> str:
    """A conversation as one text, each turn under its role."""
    if isinstance(prompt, str):
        return prompt
    turns = [mapping(turn) for turn in _list(prompt)]
    return "\n\n".join(f"[{_text(t.get('role'))}]\n{_text(t.get('content'))}" for t in turns)


def _answer(
    index: int,
    data: Mapping[str, Any],
    reward: float | None,
    advantage: Any,
    scores: Mapping[str, tuple[float | None, ...]],
) -> StoredAnswer:
    tokens = tuple(t if isinstance(t, int) else -1 for t in _list(data.get("tokens")))
    sampled = tuple(value is True for value in _list(data.get("sampled")))
    return StoredAnswer(
        index=index,
        text=_text(data.get("text")),
        stop=_text(data.get("stop")),
        tokens=tokens,
        logprobs=_numbers(data.get("logprobs")),
        old_logprobs=_numbers(data.get("old_logprobs")),
        old_entropies=_numbers(data.get("old_entropies")),
        ref_logprobs=_numbers(data.get("ref_logprobs")),
        reward=reward,
        advantage=mean(_numbers(advantage)) if isinstance(advantage, list) else finite(advantage),
        scores={name: _at(values, index) for name, values in scores.items()},
        advantages=_numbers(advantage),
        sampled=sampled if len(sampled) == len(tokens) else (),
        episode=_episode(data.get("episode")),
        segment=_count(data.get("segment")),
    )


def _episode(data: Any) -> StoredEpisode | None:
    if not isinstance(data, dict):
        return None
    messages: list[StoredMessage] = []
    turn = 0
    for message in map(mapping, _list(data.get("messages"))):
        role = _text(message.get("role"))
        messages.append(_message(message, role, turn if role == "assistant" else None))
        turn += role == "assistant"
    numbers = ("calls", "malformed", "segments", "seconds", "waited")
    return StoredEpisode(
        messages=tuple(messages),
        turns=tuple(_count(count) for count in _list(data.get("turns"))),
        rewards=_numbers(data.get("rewards")),
        scores={str(n): finite(v) for n, v in mapping(data.get("scores")).items()},
        numbers={name: finite(data.get(name)) for name in numbers},
        error=_text(data.get("error")),
    )


def _message(message: Mapping[str, Any], role: str, turn: int | None) -> StoredMessage:
    functions = [mapping(mapping(c).get("function")) for c in _list(message.get("tool_calls"))]
    given = [(f.get("name"), f.get("arguments")) for f in functions]
    calls = tuple((_text(n), v if isinstance(v, str) else json.dumps(v)) for n, v in given)
    return StoredMessage(
        role, _text(message.get("content")), _text(message.get("name")), calls, turn
    )


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(value: Any) -> tuple[float | None, ...]:
    return tuple(finite(number) for number in _list(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else str(value)


def _at(values: Any, index: int) -> Any:
    return values[index] if index < len(values) else None
