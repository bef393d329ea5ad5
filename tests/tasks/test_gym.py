"""reasoning-gym's tasks by name; what is judged by evaluation is looked at first."""

import json

import pytest

from groupwise.config.tasks import GymTask
from groupwise.errors import ConfigError, DataError
from groupwise.recipe import parse
from groupwise.rewards import gym
from groupwise.rewards.base import Reward
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.catalog import build_task


def test_only_harmless_formulas_are_evaluated() -> None:
    for good in ("94*4 - 61 - 6", "3*x**2 + sin(x)/2 + C", "x**(3/2)*y**10", "(x+1)**2", "1e3"):
        assert gym.harmless(good, "formula"), good
    for bad in (
        *("__import__('os')", "exec(1)", "open(x)", "eval(chr(1))", "S('1')", "x.y()", "lambda: 1"),
        *("9**9**9", "9**(9**9)", "9**999", "2**x", "x!", "((9**99)**99)**99*(1)**9", "1" * 400),
    ):
        assert not gym.harmless(bad, "formula"), bad


def test_only_plain_lists_are_evaluated() -> None:
    for good in ("[1, 2, 3]", "['A', \"B\"]", "[[1, -2], [0.5, 4]]", "12"):
        assert gym.harmless(good, "literal"), good
    for bad in ("print(1)", "[1]*10**9", "a.__class__", "{1: 2}", "[x for x in (1,)]", "'a'*9"):
        assert not gym.harmless(bad, "literal"), bad
    assert gym.harmless("anything (at all)", None)


def test_answers_are_read_from_tags() -> None:
    assert gym.extract("<think>x</think><answer> 4*5 </answer>") == "4*5"
    for text in ("4*5", "<answer></answer>", f"<answer>{'1' * 5000}</answer>"):
        assert gym.extract(text) is None


def test_problems_are_generated_in_disjoint_splits_and_judged_by_their_index() -> None:
    pytest.importorskip("reasoning_gym")
    settings = GymTask(name="leg_counting", train_size=30, test_size=5)
    task = build_task(settings)
    assert task.name == "gym:leg_counting"
    assert [len(split) for split in (task.train, task.validation, task.test)] == [30, 5, 5]
    questions = [p.columns["question"] for s in (task.train, task.validation, task.test) for p in s]
    assert len(set(questions)) == 40
    assert build_task(settings) == task
    assert build_task(GymTask(name="leg_counting", train_size=30, test_size=5, seed=1)) != task
    assert task.correct is not None
    for problem in task.train[:5]:
        columns = json.loads(json.dumps(dict(problem.columns)))  # as a run folder stores it
        right = f"<think>legs</think><answer>{columns['answer']}</answer>"
        assert task.correct(right, columns["gym"]) and task.formatted(right)
        assert not task.correct(right.replace("<answer>", "<answer>1"), columns["gym"])
        assert not task.correct("", columns["gym"])


def test_partial_credit_is_a_reward_and_not_correct() -> None:
    pytest.importorskip("reasoning_gym")
    options = {"min_numbers": 3, "max_numbers": 3}
    task = build_task(GymTask(name="countdown", train_size=4, test_size=1, options=options))
    assert task.correct is not None
    problem = task.train[0]
    attack = "<answer>__import__('os').system('true') or 1</answer>"
    texts = [f"<answer>{problem.columns['answer']}</answer>", "<answer>1+1</answer>", attack, ""]
    with Scorer([Reward("gym", resolve("gym"))], 30.0, "stop") as scorer:
        scores = scorer.score([problem] * 4, texts)["gym"]
    assert scores == [1.0, pytest.approx(0.05), 0.0, 0.0]
    assert [task.correct(t, problem.columns["gym"]) for t in texts] == [True, False, False, False]


def test_unknown_names_options_and_sizes_are_explained() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match=r"no task 'countdwn' \(did you mean 'countdown'"):
        build_task(GymTask(name="countdwn"))
    with pytest.raises(ConfigError, match=r"task\.options of reasoning-gym's countdown: .*colour"):
        build_task(GymTask(name="countdown", options={"colour": "red"}))
    with pytest.raises(DataError, match=r"coin_flip gave only \d+ different .*lower task\."):
        few = {"min_trials": 3, "max_trials": 3}
        build_task(GymTask(name="coin_flip", train_size=1000, options=few))


def test_a_recipe_says_kind_and_name_at_once() -> None:
    wanted = GymTask(name="countdown")
    assert parse({"task": "gym:countdown"}).task == wanted
    assert parse({}, ["task=gym:countdown"]).task == wanted
    assert parse({"task": {"kind": "gym", "name": "countdown"}}).task == wanted
    with pytest.raises(ConfigError, match=r"task\.name: field required"):
        parse({"task": "gym"})
    with pytest.raises(ConfigError, match=r"unknown setting 'task\.nmae': did you mean 'name'"):
        parse({"task": {"kind": "gym", "name": "x", "nmae": "y"}})
    with pytest.raises(ConfigError, match=r"unknown setting 'task\.gym'"):
        parse({"task": {"kind": "countdown", "gym": 3}})
