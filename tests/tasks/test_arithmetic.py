"""The arithmetic task: right answers, disjoint splits, strict judges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.answers.tags import tag_content, think_answer_format
from groupwise.config.tasks import ArithmeticTask
from groupwise.errors import ConfigError, DataError
from groupwise.tasks import arithmetic
from groupwise.tasks.base import split_of


def ids(problems):
    return {problem.id for problem in problems}


def test_a_problem_carries_its_expression_and_exact_answer():
    problem = arithmetic.problem_of("23+48-16*2")
    assert problem.id == "arithmetic/23+48-16*2"
    assert problem.columns == {"expression": "23+48-16*2", "answer": "39"}
    assert not isinstance(problem.prompt, str)
    (message,) = problem.prompt
    assert message["role"] == "user" and "23+48-16*2?" in message["content"]


def test_sizes_and_shape_follow_the_settings():
    task = arithmetic.build(
        ArithmeticTask(operators=("*",), digits=3, steps=4, train_size=50, test_size=7)
    )
    assert (len(task.train), len(task.validation), len(task.test)) == (50, 7, 7)
    for problem in task.train:
        operands = problem.columns["expression"].split("*")
        assert len(operands) == 5
        assert all(1 <= int(operand) <= 999 for operand in operands)


def test_default_train_split_has_4096_different_problems():
    assert len(ids(arithmetic.build(ArithmeticTask()).train)) == 4096


def test_splits_are_disjoint_across_seeds_and_sizes():
    tasks = [
        arithmetic.build(ArithmeticTask(digits=1, seed=seed, train_size=size, test_size=40))
        for seed, size in ((0, 400), (1, 900), (2, 1200))
    ]
    train, validation, test = (
        set().union(*(ids(getattr(task, split)) for task in tasks))
        for split in ("train", "validation", "test")
    )
    assert len(train) > 1200 and len(validation) > 40 and len(test) > 40
    assert not train & validation and not train & test and not validation & test
    assert {split_of(problem) for problem in validation} == {"validation"}


def test_same_seed_same_problems_and_another_seed_others():
    first, again, other = (
        arithmetic.build(ArithmeticTask(seed=seed, train_size=100)) for seed in (3, 3, 4)
    )
    assert first.train == again.train and first.test == again.test
    assert ids(first.train) != ids(other.train)


def test_a_longer_train_split_starts_with_the_shorter_one():
    short, long = (arithmetic.build(ArithmeticTask(train_size=n)) for n in (10, 50))
    assert long.train[:10] == short.train


def test_too_small_a_space_of_problems_says_which_setting_to_raise():
    with pytest.raises(DataError, match=r"only 1\d\d could be generated.*Raise task\.digits \(1\)"):
        arithmetic.build(ArithmeticTask(digits=1, steps=1))


def test_no_operators_is_an_error():
    with pytest.raises(ConfigError, match=r"task\.operators is empty"):
        arithmetic.build(ArithmeticTask(operators=()))


@pytest.mark.parametrize(
    ("completion", "extracted"),
    [
        ("<think>23+48=71</think><answer>55</answer>", "55"),
        ("<answer> -055 </answer>\n", "-55"),
        ("<answer>-0</answer>", "0"),
        ("<answer>55</answer> I hope", None),
        ("<answer>54</answer><answer>55</answer>", None),
        ("<answer>55 apples</answer>", None),
        ("<answer>5_5</answer>", None),
        ("<answer>٥٥</answer>", None),
        ("<answer>²</answer>", None),
        ("<answer>--5</answer>", None),
        ("<answer></answer>", None),
        ("</answer>55<answer>", None),
        ("<answer>" + "9" * 100_000 + "</answer>", None),
        ("55", None),
        ("", None),
    ],
)
def test_only_a_single_final_answer_pair_with_an_integer_counts(completion, extracted):
    assert arithmetic.extract(completion) == extracted
    assert arithmetic.correct(completion, "55") == (extracted == "55")


@given(st.integers(-(10**50), 10**50))
def test_the_right_integer_is_correct_and_its_neighbour_is_not(value):
    completion = f"<think>hm</think><answer>{value}</answer>"
    assert arithmetic.correct(completion, str(value))
    assert not arithmetic.correct(completion, str(value + 1))


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        ("<think>a</think><answer>b</answer>", True),
        (" <think></think>\n<answer></answer>\n", True),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think> so <answer>b</answer>", False),
        ("well <think>a</think><answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>.", False),
        ("<think>a<answer>b</answer></think>", False),
        ("<think>a</think><think>c</think><answer>b</answer>", False),
        ("<think>a</think><answer>b", False),
        ("<answer>b</answer>", False),
        ("", False),
    ],
)
def test_format_is_think_then_answer_and_nothing_else(text, well_formed):
    assert think_answer_format(text) is well_formed


PIECES = ["<think>", "</think>", "<answer>", "</answer>", "x", " ", "<", ">", "/"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_format_is_what_rebuilding_the_text_from_its_contents_gives(text):
    think, answer = tag_content(text, "think"), tag_content(text, "answer")
    rebuilt = f"<think>{think}</think><answer>{answer}</answer>"
    squeezed = text.strip().split("</think>", 1)
    squeezed = "</think>".join([squeezed[0], *(part.lstrip() for part in squeezed[1:])])
    assert think_answer_format(text) == (
        think is not None and answer is not None and squeezed == rebuilt
    )
