"""Rollouts in flight: bounded staleness, recorded switches of weights, and nothing lost."""

import json
import pathlib
import signal

import pytest

from groupwise.config import Config
from groupwise.load import load_parts
from groupwise.rollout.noise import answer_key
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import train
from groupwise.training.checkpoint import newest_checkpoint
from groupwise.training.in_flight import recent_tokens
from groupwise.training.metrics import staleness
from groupwise.training.sampler import draw
from groupwise.types import Completion, Group, Problem
from growing_engine import GrowingEngine, token
from runs import small_config, use_workers
from test_resume import attempt

STEPS = 8


def config_for(*overrides: str) -> Config:
    return small_config(
        f"steps={STEPS}",
        "place.count=1",
        "timing.kind=in_flight",
        "timing.max_staleness=2",
        "rollout.overlong_buffer=16",  # a learning signal from any answer: its length
        "eval.every=5",
        "eval.problems=1",  # no weights change meanwhile, and this engine waits for that
        "eval.k=1",
        "checkpoint.every=3",
        *overrides,
    )


@pytest.fixture(autouse=True)
def _growing(monkeypatch: pytest.MonkeyPatch) -> None:
    use_workers(monkeypatch, GrowingEngine)


def positions(config: Config) -> dict[str, int]:
    """Where in the order each problem is first drawn."""
    with load_parts(config, engine=GrowingEngine) as parts:
        train_set = parts.problems["train"]
        drawn = draw(train_set, 0, len(train_set), config.seed)
    return {problem.id: place for place, (problem, _) in enumerate(drawn)}


def learned_from(folder: pathlib.Path) -> list[list[dict]]:
    return [read_rollouts(path) for path in sorted((folder / "rollouts").glob("*.gz"))]


def check_nothing_is_lost(folder: pathlib.Path, config: Config) -> None:
    """Each problem up to the cursor was learned from once, or waits in the last checkpoint."""
    place = positions(config)
    learned = [place[g["problem"]["id"]] for groups in learned_from(folder) for g in groups]
    newest = newest_checkpoint(folder / "checkpoints")
    assert newest is not None
    state = json.loads((newest / "state.json").read_text())
    waiting = [*state["open"], *(position for position, _ in state["complete"])]
    assert len(learned) == STEPS * config.batch.prompts
    assert sorted([*learned, *waiting]) == list(range(state["cursor"]))


@pytest.mark.parametrize("unfinished", ["recycle", pytest.param("drop", marks=pytest.mark.slow)])
def test_answers_are_never_older_than_the_bound_and_say_which_weights_drew_each_token(
    unfinished: str, tmp_path: pathlib.Path
) -> None:
    config = config_for(f"timing.unfinished={unfinished}", "batch.epochs=2")
    train(config, tmp_path / "run", quiet=True)
    check_nothing_is_lost(tmp_path / "run", config)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    place, switches = positions(config), 0
    for step, groups in enumerate(learned_from(tmp_path / "run")):
        assert len(groups) == config.batch.prompts
        for group in groups:
            problem = group["problem"]["id"]
            for index, answer in enumerate(group["completions"]):
                key = answer_key(config.seed, f"problem {place[problem]}", problem, index)
                parts = [tuple(part) for part in answer["versions"]] or [(0, answer["version"])]
                switches += len(parts) - 1
                versions = [
                    max(part for part in parts if part[0] <= position)[1]
                    for position in range(len(answer["tokens"]))
                ]
                # What is recorded is enough to draw the same tokens again.
                assert answer["tokens"] == [token(key, n, v) for n, v in enumerate(versions)]
                counts = answer["sampled"] or [True] * len(versions)
                ages = [step - v for v, counted in zip(versions, counts, strict=True) if counted]
                assert ages and min(ages) >= 0 and max(ages) <= 2
                if unfinished == "drop":
                    assert answer["sampled"] is None
    assert switches > 0, "weights never changed while an answer grew"


def test_steps_learn_from_groups_in_the_order_in_which_they_are_complete(
    tmp_path: pathlib.Path,
) -> None:
    config = config_for()
    train(config, tmp_path / "run", quiet=True)
    place = positions(config)
    for groups in learned_from(tmp_path / "run"):
        order = [place[group["problem"]["id"]] for group in groups]
        assert order == sorted(order)


def test_flat_groups_are_replaced(tmp_path: pathlib.Path) -> None:
    config = config_for("rollout.max_draws=3", "rollout.overlong_buffer=1")
    train(config, tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == STEPS and all(3 <= line["problems_drawn"] <= 9 for line in lines)
    assert max(line["problems_drawn"] for line in lines) > 3


MOMENTS = [
    ("groupwise.training.update:policy_loss", 5),
    ("groupwise.training.in_flight:sample_group", 20),
    ("groupwise.load:score_groups", 9),
    ("groupwise.training.tensor_files:save_file", 2),
    ("groupwise.tracking.run:RunFolder.log_metrics", 7),
    ("groupwise.tracking.whole:_sync_folder", 9),
    ("groupwise.training.in_flight:recent_tokens", 60),
    ("groupwise.training.api:model_card", 1),
]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(m, id=f"{m[0].split(':')[-1]}-{m[1]}", marks=[pytest.mark.slow] * (i >= 1))
        for i, m in enumerate(MOMENTS)
    ],
)
def test_killed_and_resumed_no_problem_is_skipped_or_learned_from_twice(
    moment: tuple[str, int], tmp_path: pathlib.Path
) -> None:
    config, folder = config_for(), tmp_path / "run"
    assert attempt(config, folder, moment) == -signal.SIGKILL, "the moment was never reached"
    assert attempt(config, folder, None) == 0
    check_nothing_is_lost(folder, config)


def test_only_tokens_by_weights_that_are_recent_enough_count() -> None:
    answer = Completion(
        (7, 8, 9, 9), (-1.0,) * 4, "eos", version=2, versions=((0, 2), (1, 3), (3, 5))
    )
    assert recent_tokens(answer, 2) == answer
    assert recent_tokens(answer, 4).sampled == (False, False, False, True)  # pyright: ignore
    assert recent_tokens(answer, 3).sampled == (False, True, True, True)  # pyright: ignore
    assert recent_tokens(answer, 6) is None
    assert recent_tokens(Completion((7,), (-1.0,), "eos", version=2), 3) is None


def test_staleness_is_that_of_the_tokens_that_count() -> None:
    answer = Completion((1, 2, 3), (0.0,) * 3, "eos", version=1, versions=((0, 1), (2, 4)))
    recent = recent_tokens(answer, oldest=3)
    assert recent is not None
    for completion, age in ((answer, 4.0), (recent, 1.0)):
        group = Group(Problem("a", ""), (1,), (completion,))
        assert staleness([group], step=5) == {"staleness": age, "staleness_max": age}
