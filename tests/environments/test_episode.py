"""Episodes: exact tokens, limits, and environments that fail without costing anybody else."""

import asyncio
import json
import math
import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from environments.scripted import (
    END,
    LIMITS,
    PROBLEM,
    Scripted,
    ScriptedEngine,
    episodes,
    hang,
    play,
    user,
)
from environments.templates import tokenizer_of
from groupwise.batch import make_batch
from groupwise.environments.base import AllEpisodesFailed, Reply, Turn
from groupwise.environments.episode import cut_message
from groupwise.types import Completion, Episode, Problem, group_from_json, to_json


def told(prompt: str) -> str:
    """A turn that says how many turns there were before it."""
    return f"turn {prompt.count('<|assistant|>')}"


def until(turns: int) -> Any:
    """An environment that ends after so many turns, and pays 1 for each."""

    def make(problem: Problem) -> Scripted:
        seen: list[Turn] = []

        def step(turn: Turn) -> Reply:
            seen.append(turn)
            return user(f"reply {len(seen)}", reward=1.0, done=len(seen) == turns)

        return Scripted(step, scores={"won": 0.5})

    return make


def test_sampled_tokens_are_held_and_replies_are_masked() -> None:
    engine = ScriptedEngine(told)
    group = play(engine, episodes(until(3)))
    (answer,) = group.completions
    tokenizer = tokenizer_of("tiny")
    whole = tokenizer.decode([*group.prompt_tokens, *answer.tokens])
    assert whole == (
        "<|bos|><|user|>What is 3+4?<|end|><|assistant|>turn 1<|end|><|user|>reply 1<|end|>"
        "<|assistant|>turn 2<|end|><|user|>reply 2<|end|><|assistant|>turn 3<|end|>"
    )
    assert answer.sampled is not None and len(answer.sampled) == len(answer.tokens)
    written = [t for t, own in zip(answer.tokens, answer.sampled, strict=True) if own]
    assert written == [token for turn in engine.answers for token in turn.tokens]
    for logprob, own in zip(answer.logprobs, answer.sampled, strict=True):
        assert logprob == (-0.25 if own else 0.0)
    # Each request's prompt is the one before it, its answer, and a suffix.
    following = engine.requests[1:]
    for before, turn, after in zip(engine.requests, engine.answers, following, strict=False):
        held = (*before.prompt_tokens, *turn.tokens)
        assert after.prompt_tokens[: len(held)] == held
    assert make_batch([group]).mask_BT.sum() == len(written)


def test_the_record_has_messages_turns_and_rewards() -> None:
    (answer,) = play(ScriptedEngine(told), episodes(until(2))).completions
    episode = answer.episode
    assert episode is not None
    assert [(m["role"], m["content"]) for m in episode.messages] == [
        ("assistant", "turn 1"),
        ("user", "reply 1"),
        ("assistant", "turn 2"),
        ("user", "reply 2"),
    ]
    assert sum(episode.turns) == sum(answer.sampled or ())
    assert episode.rewards == (1.0, 1.0) and episode.scores == {"won": 0.5}
    assert episode.reward == 2.5
    assert answer.text == "turn 2" and answer.stop == "eos"
    assert 0 <= episode.waited <= episode.seconds


def test_groups_of_episodes_survive_a_checkpoint() -> None:
    group = play(ScriptedEngine(told), episodes(until(2)), count=2)
    assert group_from_json(json.loads(json.dumps(to_json(group)))) == group


def test_each_turn_has_a_key_of_its_own_and_the_first_has_the_episode_s() -> None:
    engine = ScriptedEngine(told)
    play(engine, episodes(until(3)), count=2)
    keys = [request.keys[0] for request in engine.requests]
    assert len(set(keys)) == 6 and {0, 1} <= set(keys)
    again = ScriptedEngine(told)
    play(again, episodes(until(3)), count=2)
    assert sorted(keys) == sorted(request.keys[0] for request in again.requests)


def test_the_turn_limit_ends_an_episode() -> None:
    (answer,) = play(
        ScriptedEngine(told), episodes(until(99), replace(LIMITS, max_turns=3))
    ).completions
    assert answer.stop == "turns" and answer.episode and len(answer.episode.turns) == 3
    assert answer.tokens[-1] == END, "no reply follows the last turn"


def test_replies_do_not_eat_the_answer_s_budget() -> None:
    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: user("x" * 150))

    limits = replace(LIMITS, max_turns=4)
    (answer,) = play(ScriptedEngine(told), episodes(make, limits), tokens=40).completions
    assert answer.stop == "turns", "four turns of 7 tokens fit into 40; the replies are 450"
    assert len(answer.tokens) > 400


def test_the_budget_of_the_answer_counts_over_all_turns() -> None:
    (answer,) = play(ScriptedEngine(told), episodes(until(99)), tokens=17).completions
    assert answer.stop == "length" and answer.truncated
    assert sum(answer.sampled or ()) == 17 and answer.episode and sum(answer.episode.turns) == 17


def test_a_long_reply_is_cut_and_says_so() -> None:
    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: user("a" * 5000))

    limits = replace(LIMITS, max_turns=2, max_reply_tokens=20)
    (answer,) = play(ScriptedEngine(told), episodes(make, limits)).completions
    assert answer.episode is not None
    reply = answer.episode.messages[1]["content"]
    assert reply.startswith("a" * 20 + "\n[") and "were left out]" in reply
    assert len(answer.tokens) < 200


def test_of_a_flood_only_the_beginning_is_tokenized() -> None:
    began = time.monotonic()
    cut = cut_message({"role": "user", "content": "x" * 30_000_000}, tokenizer_of("tiny"), 8)
    assert time.monotonic() - began < 5
    kept, _, said = cut["content"].partition("\n")
    assert 0 < len(kept) <= 8 * 256
    assert said.endswith(f"{30_000_000 - 9 * 256} characters behind them were left out]")


def test_what_reset_says_joins_the_question() -> None:
    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: Reply(done=True), first=user(" Quickly."))

    engine = ScriptedEngine(told)
    play(engine, episodes(make))
    prompt = tokenizer_of("tiny").decode(list(engine.requests[0].prompt_tokens))
    assert "What is 3+4? Quickly.<|end|>" in prompt


def test_episodes_that_begin_differently_still_make_an_exact_group() -> None:
    """A group has one prompt: what differs is in front of the answers, and is not learned."""
    count = iter(range(2))

    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: Reply(done=True), first=user(f" {next(count)}"))

    engine = ScriptedEngine(told)
    group = play(engine, episodes(make), count=2)
    asked = {request.prompt_tokens for request in engine.requests}  # whichever began first
    for answer in group.completions:
        whole = (*group.prompt_tokens, *answer.tokens)
        (own,) = [prompt for prompt in asked if whole[: len(prompt)] == prompt]
        asked.remove(own)
        assert sum(answer.sampled or ()) == answer.episode.turns[0]  # type: ignore[union-attr]


def test_a_template_that_drops_thinking_splits_the_episode() -> None:
    def write(prompt: str) -> str:
        return f"<think>\nthought {prompt.count('assistant')}\n</think>\n\nsaid"

    engine = ScriptedEngine(write, "qwen3")
    group = play(engine, episodes(until(3), name="qwen3"))
    first, *others = group.completions
    assert [answer.segment for answer in group.completions] == [0, 1, 2]
    assert first.episode is not None and first.episode.segments == 3
    assert all(answer.episode is None for answer in others)
    tokenizer = tokenizer_of("qwen3")
    for request, turn, answer in zip(
        engine.requests, engine.answers, group.completions, strict=True
    ):
        whole = (*group.prompt_tokens, *answer.tokens)
        assert whole == (*request.prompt_tokens, *turn.tokens), "as it was sampled"
        assert tokenizer.decode(list(whole)).count("thought") == 1


BROKEN: dict[str, tuple[Any, str]] = {
    "raises": (lambda turn: 1 / 0, "step() raised ZeroDivisionError"),
    "exits": (lambda turn: exit(3), "step() raised SystemExit"),
    "returns no reply": (lambda turn: "hello", "step() returned"),
    "returns nothing": (lambda turn: None, "step() returned"),
    "gives NaN": (lambda turn: user("x", reward=math.nan), "gave the reward"),
    "gives a text": (lambda turn: user("x", reward="1"), "gave the reward"),
    "speaks for the model": (
        lambda turn: Reply(({"role": "assistant", "content": "7"},)),
        "its role must be",
    ),
    "has no content": (lambda turn: Reply(({"role": "user"},)), "its role must be"),
    "hangs": (lambda turn: hang(), "did not return within"),
    "waits for ever": (lambda turn: asyncio.sleep(3600), "did not return within"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_environment_costs_its_own_episode_only(how: str) -> None:
    step, said = BROKEN[how]
    made: list[Scripted] = []

    def make(problem: Problem) -> Scripted:
        good = until(2)(problem)
        made.append(Scripted(step, scores={"won": 1.0}) if len(made) == 1 else good)
        return made[-1]

    limits = replace(LIMITS, step_seconds=0.5)
    group = play(ScriptedEngine(told), episodes(make, limits), count=4)
    failed = [answer for answer in group.completions if answer.stop == "environment"]
    assert len(failed) == 1 and failed[0].episode is not None
    assert said in failed[0].episode.error
    assert failed[0].episode.reward is None, "it is not 0, which others might beat or miss"
    assert [a.episode.reward for a in group.completions if a not in failed and a.episode] == [
        2.5
    ] * 3
    episodes(make).check([group])


def test_a_broken_score_is_no_score() -> None:
    for scores in ({"won": math.inf}, {"won": "yes"}, 3.0, [1.0]):
        made = episodes(lambda p, s=scores: Scripted(lambda turn: Reply(done=True), scores=s))
        (answer,) = play(ScriptedEngine(told), made).completions
        assert answer.stop == "environment" and answer.episode and answer.episode.error
        assert answer.tokens, "what was sampled is kept, to look at"


def test_an_environment_that_cannot_be_made_or_reset_is_named() -> None:
    def make(problem: Problem) -> Scripted:
        raise RuntimeError("no docker here")

    group = play(ScriptedEngine(told), episodes(make), count=2)
    with pytest.raises(AllEpisodesFailed, match=r"2 of 2 .* 'p'.*no docker here"):
        episodes(make).check([group])
    assert make_batch([group]).mask_BT.sum() == 0


def test_environments_are_closed_however_they_end() -> None:
    made: list[Scripted] = []

    def make(problem: Problem) -> Scripted:
        made.append(Scripted(lambda turn: 1 / 0))
        return made[-1]

    play(ScriptedEngine(told), episodes(make), count=3)
    assert all(environment.closed for environment in made)


def test_the_seconds_of_an_episode_are_those_of_its_environment() -> None:
    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: (time.sleep(0.2), user("on"))[1])

    limits = replace(LIMITS, step_seconds=5.0, episode_seconds=0.5)
    (answer,) = play(ScriptedEngine(told), episodes(make, limits)).completions
    assert answer.stop == "environment" and answer.episode
    assert re.search("did not return within|0.5 s of the episode are over", answer.episode.error)


def test_a_loop_that_sampling_blocks_is_no_time_out() -> None:
    """Engines of this process block the loop while they sample: the tool was in time."""

    def write(prompt: str) -> str:
        time.sleep(0.4)
        return told(prompt)

    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: (time.sleep(0.05), user("on", done=True))[1])

    limits = replace(LIMITS, step_seconds=0.3)
    group = play(ScriptedEngine(write), episodes(make, limits), count=3)
    assert [answer.stop for answer in group.completions] == ["eos"] * 3


def test_a_slow_tool_blocks_nobody_else() -> None:
    """64 episodes of which every tenth waits until all the others have ended."""
    others_ended = threading.Event()
    order: list[int] = []
    numbers = iter(range(64))

    def make(problem: Problem) -> Scripted:
        number, turns = next(numbers), []

        def step(turn: Turn) -> Reply:
            turns.append(turn)
            if number % 10 == 0 and len(turns) == 1:
                assert others_ended.wait(60)
            if len(turns) == 3:
                order.append(number)
                if len(order) == 57:
                    others_ended.set()
            return user("on", done=len(turns) == 3)

        return Scripted(step)

    limits = replace(LIMITS, step_seconds=120.0, episode_seconds=200.0)
    group = play(ScriptedEngine(told), episodes(make, limits, at_once=64), count=64)
    assert {answer.stop for answer in group.completions} == {"eos"}
    assert all(number % 10 for number in order[:57]), "the slow ones end last"


def test_no_more_episodes_run_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    # No slot counts as idle, however slow the machine is.
    monkeypatch.setattr("groupwise.environments.slots.IDLE_SECONDS", 600.0)
    running, most = 0, 0
    lock = threading.Lock()

    class Counting(Scripted):
        async def reset(self, problem: Problem, seed: int) -> Reply:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            await asyncio.sleep(0.01)
            return Reply()

        async def close(self) -> None:
            nonlocal running
            with lock:
                running -= 1

    made = episodes(lambda problem: Counting(lambda turn: Reply(done=True)), at_once=3)
    play(ScriptedEngine(told), made, count=12)
    assert most <= 3 and running == 0


def test_the_oldest_weights_behind_an_episode_are_its_version() -> None:
    versions = iter((4, 3, 5))

    class Updated(ScriptedEngine):
        async def sample(self, request: Any, sampling: Any) -> tuple[Completion, ...]:
            (answer,) = await super().sample(request, sampling)
            return (replace(answer, version=next(versions)),)

    (answer,) = play(Updated(told), episodes(until(3))).completions
    assert answer.version == 3
    starts = [first for first, _ in answer.versions]
    assert [version for _, version in answer.versions] == [4, 3, 5]
    assert answer.sampled is not None
    for start in starts[1:]:
        assert answer.sampled[start] and not answer.sampled[start - 1], "a turn begins there"


def test_no_reward_is_none_and_not_0() -> None:
    assert Episode().reward is None
    assert Episode(rewards=(None, None), scores={"won": None}).reward is None
    assert Episode(rewards=(None, 0.0)).reward == 0.0
    assert PROBLEM.columns["answer"] == "7"
