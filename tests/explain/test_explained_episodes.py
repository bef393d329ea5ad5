"""Steps of runs with environments: explained, replayed and reported from what was stored alone."""

import io
import json
import pathlib
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

import groupwise
from groupwise.errors import ConfigError
from groupwise.explain.groups import group_views
from groupwise.explain.page import step_page
from groupwise.explain.replay import print_replay, replay_step
from groupwise.explain.step import ExplainedStep, run_step
from groupwise.explain.terminal import print_step
from groupwise.report.run_page import report_page
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from runs import small_config

ENVIRONMENT = '''
from groupwise.environments.base import Reply, ToolSpec


class Digits:
    """Pays by turn for the digits of the answer; fails in the third episode."""

    tools = ()
    made = 0

    def __init__(self, problem):
        self.answer, self.turns = str(problem.columns["answer"]), 0
        Digits.made += 1
        self.fails = Digits.made == 3

    async def reset(self, problem, seed):
        return Reply(({"role": "user", "content": " Try twice."},))

    async def step(self, turn):
        self.turns += 1
        if self.fails:
            raise RuntimeError("out of order")
        content = f"reply <b>{self.turns}</b>"
        reward = sum(digit in turn.text for digit in self.answer) + 0.1 * len(turn.text)
        return Reply(({"role": "user", "content": content},), reward, self.turns == 3)

    async def score(self):
        return {"turns": float(self.turns), "unknown": None}

    async def close(self):
        pass
'''

SMALL = (
    "batch.prompts=2",
    "optimizer.lr=1e-5",
    "eval.problems=1",
    "eval.k=1",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "rollout.max_completion_tokens=40",
    "rollout.max_prompt_tokens=256",
)
THREAD = "environment.isolation=thread"  # its episodes are counted in one process
BY_TURN = ("environment.turn_rewards=true", "environment.weight=0.5", "batch.epochs=2")
RUNS = {
    "outcome": ("steps=1",),
    "split": ("steps=2", *BY_TURN, "algorithm.kl_weight=0.05"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Their environment's file is gone when they have ended."""
    root = tmp_path_factory.mktemp("episodes")
    code = root / "digits.py"
    code.write_text(ENVIRONMENT)
    # A template that rewrites the beginning with every message: each turn is a segment.
    model = root / "rewriting"
    shutil.copytree(pathlib.Path(groupwise.__file__).parent / "policy/tiny", model)
    template = model / "chat_template.jinja"
    template.write_text("{{- messages | length -}}" + template.read_text())
    for name, settings in RUNS.items():
        own = (f"model={model}",) if name == "split" else ()
        config = small_config(*SMALL, f"environment={code}:Digits", THREAD, *settings, *own)
        train(config, root / name, quiet=True)
    code.unlink()
    return {name: root / name for name in RUNS}


def printed(step: ExplainedStep) -> str:
    out = io.StringIO()
    print_step(step, Console(file=out, width=200))
    return out.getvalue()


@pytest.mark.parametrize(("name", "number"), [("outcome", 1), ("split", 1), ("split", 2)])
def test_the_numbers_of_episodes_add_up_to_the_logged_loss(
    runs: dict[str, pathlib.Path], name: str, number: int
) -> None:
    step = run_step(runs[name], number)
    logged = read_metrics(runs[name])[number - 1]
    assert step.exact and logged["grad_norm"] > 0
    assert step.loss == pytest.approx(logged["loss"], abs=1e-6)
    for update in step.taken:
        numbers = step.numbers(update)
        shares = sum(numbers.share(place) for place in numbers.answers)
        assert numbers.loss == pytest.approx(update.loss, abs=1e-6)
        assert shares == pytest.approx(numbers.loss + numbers.entropy_bonus, abs=1e-6)
        assert numbers.entropy_bonus == pytest.approx(0.0, abs=1e-6)
    norms = [update.grad_norm or 0.0 for update in step.taken]
    assert sum(norms) / len(norms) == pytest.approx(logged["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_turns_add_up_to_their_episode(runs: dict[str, pathlib.Path], name: str) -> None:
    split = 0
    for view in group_views(run_step(runs[name], 1)):
        assert len(view.answers) == 4
        for answer in view.answers:
            first = view.group.completions[answer]
            assert first.episode is not None
            lines, turns = view.segments(answer), view.turns(answer)
            split += len(lines) > 1
            assert len(lines) == first.episode.segments
            assert [turn.tokens for turn in turns] == list(first.episode.turns)
            assert sum(turn.tokens for turn in turns) == sum(
                view.group.completions[line].length for line in lines
            )
            assert sum(turn.loss for turn in turns) == pytest.approx(
                sum(view.share(line) for line in lines), abs=1e-9
            )
            advantages = [turn.advantage for turn in turns]
            if name == "outcome":
                assert advantages == pytest.approx([view.advantage(answer)] * len(turns))
            elif len(turns) > 1 and turns[0].reward:
                assert advantages[1] < advantages[0], "what was earned before is taken off"
            for line in lines:
                owns = view.group.completions[line].sampled or ()
                tokens = zip(view.tokens(line), owns, strict=False)
                assert all(token.loss == token.push == 0 for token, own in tokens if not own)
    assert bool(split) == (name == "split")


def test_an_episode_is_shown_as_a_conversation(runs: dict[str, pathlib.Path]) -> None:
    text = printed(run_step(runs["split"], 1))
    assert "3 segments, as the chat template rewrites the past" in text
    assert "reply <b>1</b>" in text and " not sampled" in text and "1.2" in text
    assert "less what was earned before the turn" in text
    assert "ended by itself; turns 3; unknown does not apply; 3 segments" in text
    page = step_page(run_step(runs["outcome"], 1))
    assert "reply &lt;b&gt;1&lt;/b&gt;" in page and "not sampled: no loss" in page
    assert "turn 2: " in page and "carries no loss" in page and "<b>1" not in page
    assert "ended by its environment&#39;s failure; step() raised RuntimeError" in page
    assert "is taken off the A" not in page


def test_a_report_shows_conversations_and_episode_curves(runs: dict[str, pathlib.Path]) -> None:
    page = report_page(runs["outcome"])
    assert "assistant [turn 1, " in page and "user: reply &lt;b&gt;1&lt;/b&gt;" in page
    assert "turns, tool calls" in page and "turn_limit" in page


def test_replay_needs_no_environment(runs: dict[str, pathlib.Path]) -> None:
    for name in RUNS:
        replay = replay_step(run_step(runs[name], 1), ["algorithm.clip_high=0.2"])
        assert replay.now.loss == pytest.approx(replay.was.loss, abs=1e-6)
    replay = replay_step(run_step(runs["outcome"], 1), ["algorithm=gdpo"])
    out = io.StringIO()
    print_replay(replay, Console(file=out, width=160))
    assert "not sampled" in out.getvalue()
    data = json.loads(json.dumps(replay.json(), allow_nan=False))
    answers = [answer for group in data["now"]["groups"] for answer in group["answers"]]
    assert all(len(answer["sampled"]) == len(answer["tokens"]) for answer in answers)
    # Which episode is the third to be made, and fails, is left to the threads.
    assert sorted(len(answer["turns"]) for answer in answers)[-4:] == [3] * 4
    stored = run_step(runs["split"], 2, stored=True)
    assert stored.loss == pytest.approx(run_step(runs["split"], 2).updates[0].loss, abs=1e-4)


def test_a_reward_from_python_does_not_get_the_environment_s_weight(
    runs: dict[str, pathlib.Path],
) -> None:
    """The environment's own is known by its values; another is not named."""
    step = run_step(runs["outcome"], 1, stored=True)
    (update,) = step.updates
    groups = tuple(
        replace(group, scores={**group.scores, "mine": (1.0,) * len(group.completions)})
        for group in update.batch.groups
    )
    other = replace(update, batch=replace(update.batch, groups=groups))
    with pytest.raises(ConfigError, match="none for mine"):
        replay_step(replace(step, updates=[other]), ["algorithm=gdpo"])
