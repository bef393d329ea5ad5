"""A step explained is the step that was trained: its numbers add up to what was logged."""

import gzip
import io
import json
import pathlib
import re
import shutil

import pytest
from rich.console import Console
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.errors import ConfigError, RunFolderError
from groupwise.explain.groups import group_views, pick
from groupwise.explain.page import step_page
from groupwise.explain.replay import print_replay, replay_step
from groupwise.explain.step import recipe_step, run_step
from groupwise.explain.terminal import print_step
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import train
from runs import STATEFUL, small_config

QUICK = ("eval.problems=1", "eval.k=1", "checkpoint.keep=9", "batch.prompts=6")
RUNS = {
    "grpo": ("steps=3",),
    "dapo": ("steps=3", "algorithm=dapo", "algorithm.kl_weight=0.05"),
    "stateful": ("steps=4", *STATEFUL, "batch.prompts=6", "eval.every=0"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    root = tmp_path_factory.mktemp("explained")
    for name, settings in RUNS.items():
        train(small_config(*QUICK, *settings), root / name, quiet=True)
    return {name: root / name for name in RUNS}


def printed(step, group: int | None = None) -> str:
    out = io.StringIO()
    print_step(step, Console(file=out, width=120), group)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "number"),
    [("grpo", 1), ("grpo", 2), ("grpo", 3), ("dapo", 1), ("dapo", 3), ("stateful", 2),
     ("stateful", 4)],
)  # fmt: skip
def test_the_numbers_add_up_to_the_logged_loss(
    runs: dict[str, pathlib.Path], name: str, number: int
) -> None:
    step = run_step(runs[name], number)
    logged = read_metrics(runs[name])[number - 1]
    assert step.exact and step.loss == pytest.approx(logged["loss"], abs=1e-6)
    for moment in step.taken:
        numbers = step.numbers(moment)
        shares = sum(numbers.share(place) for place in numbers.answers)
        assert numbers.loss == pytest.approx(moment.loss, abs=1e-6)
        assert numbers.loss == pytest.approx(shares - numbers.entropy_bonus, abs=1e-6)
    norms = [moment.grad_norm or 0.0 for moment in step.taken]
    assert sum(norms) / len(norms) == pytest.approx(logged["grad_norm"], rel=1e-5)
    tokens = [t for m in step.taken for line in step.numbers(m).answers.values() for t in line]
    assert sum(t.clipped for t in tokens) / len(tokens) == pytest.approx(
        logged["clip_low"] + logged["clip_high"], abs=1e-6
    )
    if name == "stateful":
        assert len(step.updates) == 4 and any(abs(t.ratio - 1) > 1e-4 for t in tokens)
        assert any(t.kl for t in tokens)
        assert sum(t.kl or 0.0 for t in tokens) / len(tokens) == pytest.approx(logged["kl"], 1e-4)


def test_of_very_many_groups_the_terminal_shows_the_first(
    runs: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = run_step(runs["grpo"], 1)
    assert "more groups" not in printed(step)
    monkeypatch.setattr("groupwise.explain.terminal.MOST_GROUPS", 4)
    assert "and 2 more groups: --html has them all" in printed(step)


def test_every_group_is_there_with_its_mean_and_deviation(runs: dict[str, pathlib.Path]) -> None:
    for name in ("grpo", "stateful"):
        step = run_step(runs[name], 2)
        views = group_views(step)
        assert [view.number for view in views] == [1, 2, 3, 4, 5, 6]
        for view in views:
            for reward, advantage in zip(view.group.rewards, view.group.advantages, strict=True):
                assert reward is not None and isinstance(advantage, float)
                wanted = (reward - view.mean) / (view.deviation + 1e-4)
                assert advantage == pytest.approx(wanted, abs=1e-6)
        assert pick(views, None).deviation == max(view.deviation for view in views)
    with pytest.raises(ConfigError, match="groups 1 to 6"):
        pick(views, 7)


def test_without_the_model_the_stored_log_probs_give_the_same_up_to_the_gap(
    runs: dict[str, pathlib.Path],
) -> None:
    stored, exact = run_step(runs["dapo"], 3, stored=True), run_step(runs["dapo"], 3)
    assert not stored.exact and "as stored" in stored.source
    assert stored.loss == pytest.approx(exact.loss, abs=1e-5)
    assert "sum of all tokens" in printed(stored)


def test_without_a_number_it_is_the_last_step_that_takes_no_other_to_be_made_again(
    runs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["grpo"], folder)
    for path in (folder / "checkpoints").glob("step-*"):
        if path.name != "step-000001":
            shutil.rmtree(path)
    (folder / "checkpoints" / "step-000001").mkdir(exist_ok=True)
    assert run_step(folder, None).number == 2
    assert run_step(folder, None, stored=True).number == 3


def test_a_step_far_from_any_checkpoint_falls_back_on_what_is_stored(
    runs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["grpo"], folder)
    (folder / "rollouts/step-000001.jsonl.gz").unlink()
    shutil.rmtree(folder / "checkpoints")
    assert not run_step(folder, 3).exact
    assert run_step(folder, None).number == 3
    with pytest.raises(RunFolderError, match="nearest is --step 2"):
        run_step(folder, 1)
    shutil.rmtree(folder / "rollouts")
    with pytest.raises(RunFolderError, match=r"tracking\.rollouts=1"):
        run_step(folder, 3)


def test_a_recipes_first_step_is_the_one_that_training_makes(
    runs: dict[str, pathlib.Path],
) -> None:
    step = recipe_step("demo", small_config(*QUICK, *RUNS["dapo"]))
    logged = read_metrics(runs["dapo"])[0]
    assert step.loss == pytest.approx(logged["loss"], abs=1e-7)
    assert step.logged["grad_norm"] == pytest.approx(logged["grad_norm"], rel=1e-6)
    text = printed(step, group=2)
    assert "group 2 of 6" in text and "clip(r, 0.8, 1.28)" in text and "0.05·KL" in text


def test_replay_is_what_the_other_objective_would_have_computed(
    runs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """The first step of two runs has the same answers, so one replayed is the other."""
    settings = ("steps=1", "algorithm=dapo", "algorithm.scale=batch")
    train(small_config(*QUICK, *settings), tmp_path / "other", quiet=True)
    step = run_step(runs["grpo"], 1)
    replay = replay_step(step, ["algorithm=dapo", "algorithm.scale=batch"])
    assert replay.was.loss == pytest.approx(read_metrics(runs["grpo"])[0]["loss"], abs=1e-6)
    assert replay.now.loss == pytest.approx(read_metrics(tmp_path / "other")[0]["loss"], abs=1e-6)
    other = run_step(tmp_path / "other", 1)
    for a, b in zip(group_views(replay.now), group_views(other), strict=True):
        assert a.group.advantages == pytest.approx(b.group.advantages)
        for place, tokens in b.numbers.answers.items():
            pushes = [t.push for t in a.numbers.answers[place]]
            assert pushes == pytest.approx([t.push for t in tokens], abs=1e-6)


def test_replay_shows_and_stores_what_changes(runs: dict[str, pathlib.Path]) -> None:
    replay = replay_step(run_step(runs["stateful"], 3), ["algorithm=cispo"])
    out = io.StringIO()
    print_replay(replay, Console(file=out, width=120))
    assert "token by token" in out.getvalue() and "algorithm=cispo" in out.getvalue()
    data = json.loads(json.dumps(replay.json(), allow_nan=False))
    assert (
        data["now"]["algorithm"]["surrogate"]["kind"] == "cispo" and len(data["was"]["groups"]) == 6
    )
    answer = data["now"]["groups"][0]["answers"][0]
    assert len(answer["numbers"]) == len(answer["tokens"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "--set algorithm=dapo"),
        (["batch.prompts=3"], "the objective alone"),
        (["algorithm.kl_weight=0.1"], "reference's log-probs"),
        (["algorithm.top_entropy=0.2"], "top_entropy=1"),
        (["algorithm=nonsense"], "unknown preset"),
    ],
)
def test_replay_refuses_what_a_stored_step_cannot_tell(
    runs: dict[str, pathlib.Path], settings: list[str], message: str
) -> None:
    step = run_step(runs["grpo"], 1, stored=True)
    with pytest.raises(ConfigError, match=message):
        replay_step(step, settings)


HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e\ud800<img src=x onerror=alert(1)>[bold]"


def test_hostile_answers_are_only_ever_text(
    runs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["grpo"], folder)
    path = folder / "rollouts/step-000003.jsonl.gz"
    groups = read_rollouts(path)
    for group in groups:
        group["problem"]["prompt"] = HOSTILE
        for completion in group["completions"]:
            completion["text"] = HOSTILE
        group["scores"] = {HOSTILE: group["scores"]["correct"]}
    path.write_bytes(gzip.compress("".join(json.dumps(g) + "\n" for g in groups).encode()))
    step = run_step(folder, 3, stored=True)
    html = step_page(step)
    assert "&lt;script&gt;" in html and "default-src &#x27;none" not in html
    assert not re.search(r"<(script|img|iframe|object)", html)
    assert html.encode() and "\x1b" not in html and "\u202e" not in html
    assert "http://" not in html and "https://" not in html
    text = printed(step)
    assert "\x1b[2J" not in text and "\u202e" not in text and "<script>" in text


def test_the_commands(runs: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    def invoke(*words: str) -> str:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    target = tmp_path / "step.html"
    run = str(runs["grpo"])
    assert "step 2 of grpo" in invoke("explain", run, "--step", "2", "--html", str(target))
    page = target.read_text()
    assert "prefers-color-scheme: dark" in page and "Difference to the logged loss" in page
    data = tmp_path / "replay.json"
    output = invoke(
        "replay", run, "--step", "2", "--stored", "--set", "algorithm=dapo", "--json", str(data)
    )
    assert "grpo against algorithm=dapo" in output and json.loads(data.read_text())["step"] == 2
    for words in (["explain", "demo", "--step", "2"], ["explain", run, "seed=1"]):
        with pytest.raises(ConfigError):
            CliRunner().invoke(app, words, catch_exceptions=False)
    with pytest.raises(RunFolderError, match="not a run folder"):
        CliRunner().invoke(app, ["replay", str(tmp_path)], catch_exceptions=False)
