"""The reward bench finds rewards that can be gamed, and lets good ones pass."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gameable_rewards
from groupwise.cli.main import app
from groupwise.config.tasks import ArithmeticTask, CountdownTask
from groupwise.errors import RewardError
from groupwise.load import judges
from groupwise.rewards.adversaries import FORMS, candidates, close_to, in_form, worked, wrong_answer
from groupwise.rewards.base import Reward
from groupwise.rewards.bench import RewardReport, run_bench, solve_problems
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.base import Task
from groupwise.tasks.catalog import build_task
from groupwise.types import Problem


def bench(task: Task, *rewards: Reward) -> RewardReport:
    with Scorer(rewards, 5.0, "skip") as scorer, Scorer(judges(task), 5.0, "stop") as judge:
        return run_bench(solve_problems(task.train, task.solve, count=3), scorer, judge)


def own(name: str, weight: float = 1.0) -> Reward:
    return Reward(name, resolve(name), weight)


def gameable(name: str, weight: float = 1.0) -> Reward:
    return Reward(name, f"{Path(gameable_rewards.__file__)}:{name}", weight)


@pytest.fixture(scope="module")
def sums() -> Task:
    return build_task(ArithmeticTask(train_size=8, test_size=2))


@pytest.fixture(scope="module")
def countdown() -> Task:
    return build_task(CountdownTask(train_size=8, test_size=2))


@pytest.mark.parametrize(
    "names",
    [
        ("cookbook_format", "cookbook_tags", "cookbook_answer", "cookbook_number"),
        ("simple_grpo_answer", "simple_grpo_format"),
        ("lm_book_answer", "lm_book_format"),
        ("reasoned",),
        ("answer", "cot_bonus"),
        ("answer", "step_clarity", "repetition", "language", "length_limits"),
        ("heuristic",),
    ],
)
def test_our_own_rewards_pass(names: tuple[str, ...]) -> None:
    question = "How many eggs are there?"
    problems = [Problem(str(n), question, {"answer": str(n)}) for n in (7, 18, 1250)]
    with (
        Scorer([own(name) for name in names], 5.0, "skip") as scorer,
        Scorer([own("answer"), own("think_answer")], 5.0, "stop") as judge,
    ):
        judge.rewards = (
            Reward("correct", judge.rewards[0].function),
            Reward("format", judge.rewards[1].function),
        )
        report = run_bench(solve_problems(problems), scorer, judge)
    report.check()
    assert report.problems == 3 and not report.flaws
    if names[0] == "cookbook_format":
        assert report.form == "working_out"
    if names[0] == "heuristic":  # it does not know the truth, so the best it can do is a tie
        assert all(line.ties for line in report.lines if line.kind == "wrong")


@pytest.mark.parametrize(
    "names", [("nano_format", "equation"), ("grpo_zero_format", "equation"), ("equation",)]
)
def test_the_countdown_rewards_pass(countdown: Task, names: tuple[str, ...]) -> None:
    report = bench(countdown, *map(own, names))
    report.check()
    assert any(line.kind == "the target itself" for line in report.lines)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("counts_numbers", {"number spam", "looks of reasoning"}),
        ("counts_tags", {"tag stuffing", "right, then wrong"}),
        ("believes", {"injection"}),
        ("longer_is_better", {"huge", "repeated"}),
    ],
)
def test_gameable_rewards_are_flagged_with_what_games_them(
    sums: Task, name: str, kinds: set[str]
) -> None:
    report = bench(sums, gameable(name))
    assert kinds <= {flaw.kind for flaw in report.flaws}
    assert kinds <= {line.kind for line in report.lines if line.beats}
    with pytest.raises(RewardError, match="wrong answers beat a right one"):
        report.check()


def test_a_reward_that_pays_for_the_answer_anywhere_ties_and_one_worth_more_beats(
    sums: Task,
) -> None:
    report = bench(sums, gameable("holds_the_answer"))
    tied = {line.kind for line in report.lines if line.ties and line.label == "wrong"}
    assert {"number spam", "right in the reasoning", "right after the end", "two in one"} <= tied


def test_weights_decide(sums: Task) -> None:
    looks = gameable("counts_numbers", 0.001)
    assert not bench(sums, own("answer", 2.0), looks).flaws
    assert bench(sums, own("answer", 0.01), looks).flaws


def test_a_reward_that_fails_on_an_answer_is_flagged(sums: Task) -> None:
    report = bench(sums, gameable("fails_on_huge"))
    assert report.errors == 3
    with pytest.raises(RewardError, match="failed on 3 of the bench's answers"):
        report.check()


def test_a_task_without_right_answers_is_told_what_it_needs() -> None:
    with pytest.raises(RewardError, match="need a column `answer`, or the task a `solve` function"):
        solve_problems([Problem("p", "Write a poem.")])


def test_a_judge_that_takes_everything_is_told_so(sums: Task) -> None:
    with (
        Scorer([own("answer")], 5.0, "skip") as scorer,
        Scorer([Reward("correct", lambda completion: 1.0)], 5.0, "stop") as judge,
        pytest.raises(RewardError, match="does not tell right from wrong"),
    ):
        run_bench(solve_problems(sums.train), scorer, judge)


@pytest.mark.parametrize(
    ("right", "options", "wrong"),
    [
        ("42", (), "43"),
        ("-1", (), "0"),
        ("1/2", (), "3/2"),
        ("B", ["1", "2", "3"], "C"),
        ("C", ["1", "2", "3"], "A"),
        ("B", (), "no B"),
        ("(3+5)*2", (), "(3+5)*2+1"),
        ("yes", (), "no yes"),
    ],
)
def test_wrong_answers_are_of_the_same_sort(right: str, options: list[str], wrong: str) -> None:
    assert wrong_answer(right, options) == wrong


def test_close_answers_are_within_some_percent() -> None:
    assert (close_to("100"), close_to("20"), close_to("-100")) == ("105", "21", "-95")
    assert close_to("7") is close_to("x") is close_to("1/2") is None


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_answer_and_opens_with_the_prefill(form: str) -> None:
    assert "42" in in_form(form, worked("42"), "42")
    text = in_form(form, "r", "42", prefill="<think>")
    assert text.startswith("<think>") and text.count("<think>") == 1


def test_the_set_covers_every_kind_of_trouble() -> None:
    found = candidates(Problem("p", "q", {"answer": "42"}), "think", "42", "43")
    kinds = {candidate.kind for candidate in found}
    wanted = {"tag stuffing", "number spam", "empty", "huge", "injection", "two in one", "cut off"}
    assert wanted | {"right in the reasoning", "wrong, then right", "looks of reasoning"} <= kinds
    assert {candidate.label for candidate in found} == {"right", "terse", "wrong"}


def test_the_demo_passes_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    small = ["task.train_size=8", "task.test_size=2"]
    result = CliRunner().invoke(app, ["reward", "bench", "demo", *small, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "no wrong answer beats a right one" in result.output
    report = json.loads(file.read_text())
    assert (report["form"], report["flaws"], report["errors"]) == ("think", [], 0)


def test_a_gameable_recipe_fails_on_the_command_line(tmp_path: Path) -> None:
    rewards = tmp_path / "gameable.py"
    rewards.write_text("def digits(completion):\n    return sum(map(str.isdigit, completion))\n")
    words = ["reward", "bench", f"rewards=[{rewards}:digits]", "task.train_size=8"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, RewardError)  # which the command line turns into code 2
    assert "wrong answers beat a right one" in str(result.exception)
    assert "number spam" in result.output
