"""The nouns of GRPO. Everything that travels between the steps of the loop is one of these.

    Problem --engine--> Completion --rewards--> Group --advantages--> Group --batch--> tensors

They are frozen and hold plain Python values (no tensors), so a group can be logged, stored in a
checkpoint, compared and rebuilt exactly. Letters in names: N problems, G completions of a group,
B completions of a batch, T tokens.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

Message = Mapping[str, str]
"""One chat turn: {"role": "user", "content": "What is 2 + 2?"}"""

Prompt = str | tuple[Message, ...]
"""Plain text that the model continues, or a conversation that the chat template renders."""

StopReason = Literal["eos", "stop", "length", "turns", "environment"]
"""Why an answer ended: an end-of-sequence token, a stop string, or the length limit; an episode
also by its limit on turns, or since its environment failed."""


@dataclass(frozen=True)
class Episode:
    """What happened beside the tokens in an answer that was a conversation with an environment.

    Episode(messages=({"role": "assistant", ...}, {"role": "tool", ...}, ...), turns=(31, 12),
            rewards=(None, 1.0), scores={"won": 1.0}, calls=1)

    `messages` are those behind the problem's prompt. `turns` counts the tokens that the policy
    sampled in each turn, and `rewards` has what the environment gave for each. `scores` is what it
    said at the end. `tools` counts those that the model could call, `calls` those calls that it
    made. `error` says how the environment failed, if it did.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[int, ...] = ()
    rewards: tuple[float | None, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    tools: int = 0
    calls: int = 0
    malformed: int = 0
    segments: int = 1
    error: str = ""
    seconds: float = field(default=0.0, compare=False)
    waited: float = field(default=0.0, compare=False)
    """Seconds of these in which the environment was waited for."""

    @property
    def reward(self) -> float | None:
        """What the environment gave in all; None where it gave nothing, or failed."""
        given = [r for r in (*self.rewards, *self.scores.values()) if r is not None]
        return math.fsum(given) if given and not self.error else None


@dataclass(frozen=True)
class Problem:
    """A question, and whatever its rewards need to score an answer to it.

    Problem(id="3+4", prompt="3+4=", columns={"answer": "7"})

    `id` names the problem in every random draw, so it must be unique and stable within a task.
    `prefill` is text that opens every answer ("<think>"): the model continues it, rewards see it.
    `occurrence` counts how often the same step drew the problem before: each time it is answered
    anew.
    """

    id: str
    prompt: Prompt
    columns: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    occurrence: int = 0


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. `temperature=0` is greedy; `top_k=0` and `top_p=1` filter nothing."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One prompt for an engine, and one random key for each answer wanted.

    Request(prompt_tokens=(1, 5, 9), keys=(77, 78))  asks for two answers.

    An answer depends on the prompt, its own key, the sampling settings and the weights, and on
    nothing else: not on its neighbours in a batch, nor on the order of requests.
    """

    prompt_tokens: tuple[int, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """One sampled answer, token in, token out: it is never tokenized again.

    Completion(tokens=(12, 7, 2), logprobs=(-0.1, -2.3, -0.01), stop="eos", text="...")

    `tokens` ends with the end-of-sequence token when `stop` is "eos". `logprobs` are the sampler's,
    under the distribution that it drew from. `old_logprobs` and `ref_logprobs` are the policy's and
    the reference's before the step's first update, present only when the objective needs them.
    `sampled` marks the tokens that the policy drew (None: all of them); those of a tool's reply
    are not its own. `version` counts the updates of the weights that drew it. Where weights changed
    while it grew, `versions` has (first token, version) for each part, and `version` is the oldest.
    `temperature` is set where a group's answers were drawn at different ones (None: all at the
    rollout's). `episode` is there where an answer was one. Where the chat template rewrote the
    past, an episode goes on in the completions behind it, of `segment` 1, 2, ...: they share its
    advantage, and count with it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: StopReason
    text: str = ""
    version: int = 0
    sampled: tuple[bool, ...] | None = None
    old_logprobs: tuple[float, ...] | None = None
    old_entropies: tuple[float, ...] | None = None
    ref_logprobs: tuple[float, ...] | None = None
    temperature: float | None = None
    versions: tuple[tuple[int, int], ...] = ()
    episode: Episode | None = None
    segment: int = 0

    @property
    def length(self) -> int:
        """Tokens that the policy sampled: what a reply says is not the answer's."""
        return len(self.tokens) if self.sampled is None else sum(self.sampled)

    @property
    def scored(self) -> bool:
        """Whether rewards apply: not to later segments, nor where an environment failed."""
        return self.segment == 0 and self.stop != "environment"

    @property
    def truncated(self) -> bool:
        return self.stop == "length"


Advantage = float | tuple[float, ...]
"""One number for a whole answer, or one for each of its tokens."""


@dataclass(frozen=True)
class Group:
    """All answers to one problem, with what each reward gave them.

    Group(problem, prompt_tokens=(1, 5), completions=(a, b),
          scores={"correct": (1.0, 0.0), "format": (1.0, None)},   # None: does not apply
          rewards=(1.2, 0.0),                                      # weighted sums
          advantages=(0.707, -0.707))
    """

    problem: Problem
    prompt_tokens: tuple[int, ...]
    completions: tuple[Completion, ...]
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    rewards: tuple[float | None, ...] = ()
    advantages: tuple[Advantage, ...] = ()

    @property
    def has_spread(self) -> bool:
        """Whether any answer beat another. Without spread every advantage is 0."""
        known = [reward for reward in self.rewards if reward is not None]
        return len(known) > 1 and max(known) - min(known) > 1e-8


def to_json(group: Group) -> dict[str, Any]:
    """A group as plain JSON values; `group_from_json` gives back an equal one.

    Not `asdict`, which copies every number: that took longer than computing some steps.
    """
    completions = [vars(completion) | _episode(completion) for completion in group.completions]
    return vars(group) | {"problem": vars(group.problem), "completions": completions}


def _episode(completion: Completion) -> dict[str, Any]:
    return {"episode": completion.episode and asdict(completion.episode)}


def json_line(group: Group) -> bytes:
    """A group as a line of JSON: of many thousand numbers, so as fast as that can be had."""
    try:
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(to_json(group), default=str, option=options)
    except TypeError:  # halves of characters, or numbers of more than 64 bits
        return json.dumps(to_json(group), default=str).encode() + b"\n"


def group_from_json(data: Mapping[str, Any]) -> Group:
    problem = dict(data["problem"])
    if not isinstance(problem["prompt"], str):
        problem["prompt"] = tuple(problem["prompt"])
    return Group(
        problem=Problem(**problem),
        prompt_tokens=tuple(data["prompt_tokens"]),
        completions=tuple(_completion(c) for c in data["completions"]),
        scores={name: tuple(values) for name, values in data["scores"].items()},
        rewards=tuple(data["rewards"]),
        advantages=tuple(_frozen(a) for a in data["advantages"]),
    )


def _completion(data: Mapping[str, Any]) -> Completion:
    fields = {name: _frozen(value) for name, value in data.items()}
    if fields.get("episode") is not None:
        episode = {name: _frozen(value) for name, value in fields["episode"].items()}
        fields["episode"] = Episode(**episode)
    return Completion(**fields)


def _frozen(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_frozen(item) for item in value)
    return value
