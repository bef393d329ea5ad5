"""A stored group as what a page shows of it: short texts, numbers, and tokens a page at a time."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from groupwise.view.stored_group import StoredAnswer, StoredEpisode, StoredGroup, Unreadable

PREVIEW = 4_000
TEXT_PAGE = 50_000
TOKEN_PAGE = 1_000
COLUMN_PREVIEW = 400
MOST_ANSWERS = 256
MOST_MESSAGES = 200

Decoder = Callable[[Sequence[int]], list[str]]
"""Token ids to one text for each."""


def group_card(group: StoredGroup) -> dict[str, Any]:
    return {
        "index": group.index,
        "problem": group.problem,
        "prompt": group.prompt[:PREVIEW],
        "prompt_chars": len(group.prompt),
        "prefill": group.prefill[:PREVIEW],
        "columns": {
            str(name)[:COLUMN_PREVIEW]: str(value)[:COLUMN_PREVIEW]
            for name, value in list(group.columns.items())[:50]
        },
        "has_spread": group.has_spread,
        "answers": [
            _answer_card(answer, group.segments(answer))
            for answer in group.whole_answers[:MOST_ANSWERS]
        ],
        "total_answers": len(group.whole_answers),
    }


def _answer_card(answer: StoredAnswer, segments: list[int]) -> dict[str, Any]:
    return {
        "index": answer.index,
        "text": answer.text[:PREVIEW],
        "chars": len(answer.text),
        "tokens": answer.length,
        "given_tokens": len(answer.tokens) - answer.length,
        "segments": segments,
        "episode": None if answer.episode is None else _episode_card(answer.episode),
        "stop": answer.stop[:40],
        "reward": answer.reward,
        "advantage": answer.advantage,
        "right": answer.right,
        "scores": answer.scores,
        "measures": measure_names(answer),
    }


def _episode_card(episode: StoredEpisode) -> dict[str, Any]:
    return {
        "messages": [
            {
                "role": message.role[:40],
                "name": message.name[:80],
                "content": message.content[:PREVIEW],
                "chars": len(message.content),
                "calls": [[name[:80], text[:PREVIEW]] for name, text in message.calls[:20]],
                "turn": message.turn,
            }
            for message in episode.messages[:MOST_MESSAGES]
        ],
        "total_messages": len(episode.messages),
        "turns": list(episode.turns[:MOST_MESSAGES]),
        "rewards": list(episode.rewards[:MOST_MESSAGES]),
        "scores": dict(list(episode.scores.items())[:20]),
        **episode.numbers,
        "error": episode.error[:PREVIEW],
    }


def text_page(
    group: StoredGroup, answer: int | None, first: int, message: int | None = None
) -> dict[str, Any]:
    """The next piece of an answer's text, of a message in it, or of the prompt."""
    text = group.prompt if answer is None else _answer_of(group, answer).text
    if answer is not None and message is not None:
        episode = _answer_of(group, answer).episode
        if episode is None or message >= len(episode.messages):
            raise Unreadable(f"answer {answer} has no message {message}")
        text = episode.messages[message].content
    return {"text": text[first : first + TEXT_PAGE], "first": first, "chars": len(text)}


def token_page(group: StoredGroup, answer: int, first: int, decode: Decoder) -> dict[str, Any]:
    """Texts and per-token numbers of one page of an answer's tokens."""
    chosen = _answer_of(group, answer)
    stop = min(first + TOKEN_PAGE, len(chosen.tokens))
    # From the first token on: a character may take several tokens, also across a page's edge.
    texts = decode(chosen.tokens[:stop])[first:]
    return {
        "answer": answer,
        "first": first,
        "total": len(chosen.tokens),
        "ids": chosen.tokens[first:stop],
        "texts": texts,
        "measures": _measures(chosen, first, stop),
        "sampled": [int(own) for own in chosen.sampled[first:stop]] if chosen.sampled else None,
    }


def measure_names(answer: StoredAnswer) -> list[str]:
    """What an answer's tokens can be coloured by: only what the run stored."""
    length = len(answer.tokens)
    stored = {
        "logprob": (answer.logprobs,),
        "entropy": (answer.old_entropies,),
        "ratio": (answer.old_logprobs, answer.logprobs),
        "kl": (answer.ref_logprobs, answer.old_logprobs or answer.logprobs),
        "advantage": (answer.advantages,),
    }
    return [
        name
        for name, needed in stored.items()
        if length and all(len(values) == length for values in needed)
    ]


def _measures(answer: StoredAnswer, first: int, stop: int) -> dict[str, list[float | None]]:
    """The ratio is that of the policy before its update to the sampler; KL is the k3 estimate."""
    page = slice(first, stop)
    drawn, old, ref = answer.logprobs[page], answer.old_logprobs[page], answer.ref_logprobs[page]
    measures: dict[str, list[float | None]] = {
        "logprob": list(drawn),
        "entropy": list(answer.old_entropies[page]),
        "ratio": _pairwise(old, drawn, lambda ours, theirs: _exp(ours - theirs)),
        "kl": _pairwise(ref, old or drawn, lambda ref, own: _exp(ref - own) - (ref - own) - 1),
        "advantage": list(answer.advantages[page]),
    }
    # What was said to the model has no log-prob of its own.
    sampled = answer.sampled[page] or (True,) * (stop - first)
    return {
        name: [v if own else None for v, own in zip(measures[name], sampled, strict=False)]
        for name in measure_names(answer)
    }


def _pairwise(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    combine: Callable[[float, float], float],
) -> list[float | None]:
    return [
        None if one is None or other is None else combine(one, other)
        for one, other in zip(ours, theirs, strict=False)
    ]


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _answer_of(group: StoredGroup, answer: int) -> StoredAnswer:
    if answer >= len(group.answers):
        raise Unreadable(f"group {group.index} has no answer {answer}")
    return group.answers[answer]
