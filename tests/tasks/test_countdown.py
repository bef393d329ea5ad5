"""Countdown: always solvable, judged by a parser that stands up to hostile text."""

import json
import operator
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.answers.expressions import MAX_DEPTH, MAX_LENGTH, ExpressionError, evaluate
from groupwise.config.tasks import CountdownTask
from groupwise.errors import DataError
from groupwise.tasks import countdown
from groupwise.tasks.base import split_of


def reachable(values: tuple[Fraction, ...], target: int) -> bool:
    """Brute force: combine any two values in any way until one is left."""
    if len(values) == 1:
        return values[0] == target
    for a, b, *rest in permutations(values):
        results = [a + b, a - b, a * b] + ([a / b] if b else [])
        if any(reachable((result, *rest), target) for result in results):
            return True
    return False


def ids(problems):
    return {problem.id for problem in problems}


def answer(expression: str) -> str:
    return f"<think>hm</think><answer>{expression}</answer>"


def test_every_problem_can_be_solved_by_brute_force():
    task = countdown.build(CountdownTask(numbers=(3, 4), train_size=25, test_size=10))
    for problem in (*task.train, *task.validation, *task.test):
        numbers = tuple(map(Fraction, problem.columns["numbers"]))
        assert reachable(numbers, problem.columns["target"]), problem.id


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_the_solution_a_problem_is_made_from_is_judged_correct(count):
    settings = CountdownTask(numbers=(count, count), largest=50)
    random = Random(count)
    for _ in range(200):
        numbers, target, solution = countdown.draw_solved(random, settings)
        assert len(numbers) == count and all(1 <= number <= 50 for number in numbers)
        assert 1 <= target <= 500
        assert countdown.correct(answer(solution), numbers, target), solution
        assert not countdown.correct(answer(solution), numbers, target + 1)


def test_splits_are_disjoint_across_seeds_and_sizes():
    tasks = [
        countdown.build(
            CountdownTask(numbers=(3, 3), largest=10, seed=seed, train_size=size, test_size=150)
        )
        for seed, size in ((0, 500), (1, 1500))
    ]
    train, validation, test = (
        set().union(*(ids(getattr(task, split)) for task in tasks))
        for split in ("train", "validation", "test")
    )
    assert len(train) > 1500 and len(validation) > 150 and len(test) > 150
    assert not train & validation and not train & test and not validation & test


def test_the_order_of_numbers_does_not_make_another_problem():
    assert countdown.problem_of([3, 5, 8], 16).id == countdown.problem_of([8, 3, 5], 16).id


def test_too_small_a_space_of_problems_says_which_setting_to_raise():
    with pytest.raises(DataError, match=r"Raise task\.largest \(10\)"):
        countdown.build(CountdownTask(numbers=(3, 3), largest=10, train_size=1_000_000))


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("3+5+8", True),
        (" ( 8 - 3 ) + 5 + 3 - 3 ", False),
        ("(5+3)+8", True),
        ("8--5+3", True),
        ("3+5", False),
        ("3+5+8+8", False),
        ("3+3+5+5", False),
        ("16", False),
        ("35-8", False),
        ("3+5+8=16", False),
        ("8*(5-3)", True),
        ("8/(5-3)*4", False),
    ],
)
def test_each_number_is_used_exactly_once_and_the_value_is_the_target(expression, right):
    assert countdown.correct(answer(expression), [3, 5, 8], 16) is right


def test_fractions_on_the_way_are_exact():
    assert countdown.correct(answer("8/(3-8/3)"), [3, 3, 8, 8], 24)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "()",
        "__import__('os').system('true')",
        "2**3",
        "2**9999999",
        "2^3",
        "1e9",
        "0x10",
        "1.5",
        "1_000",
        "٣+٤",
        "２+３",
        "²",
        "3 5",
        "3+",
        "*3",
        "+3",
        "(3",
        "3)",
        "3//2",
        "1/0",
        "1/(2-2)",
        "9" * 21,
        "9" * 100_000,
        "(" * 100_000 + "1" + ")" * 100_000,
        "(" * 50 + "1" + ")" * 50,
        "-" * 50 + "1",
        "1+" * MAX_LENGTH + "1",
        "3+5\x00",
        "lambda: 0",
    ],
)
def test_hostile_or_broken_text_is_no_expression(text):
    with pytest.raises(ExpressionError):
        evaluate(text)
    assert countdown.extract(answer(text)) is None
    assert countdown.correct(answer(text), [3, 5, 8], 16) is False


def test_nesting_is_allowed_up_to_the_limit():
    assert evaluate("(" * MAX_DEPTH + "7" + ")" * MAX_DEPTH).value == 7
    with pytest.raises(ExpressionError, match="nested deeper"):
        evaluate("(" * (MAX_DEPTH + 1) + "7" + ")" * (MAX_DEPTH + 1))


def test_precedence_and_associativity_are_the_usual_ones():
    assert evaluate("2+3*4-6/2").value == 11
    assert evaluate("20-5-3").value == 12
    assert evaluate("24/4/3").value == 2
    assert evaluate("-2*-(3-4)").value == -2
    assert evaluate("7-10/4").value == Fraction(9, 2)


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_an_expression_error(text):
    try:
        assert isinstance(evaluate(text).value, Fraction)
    except ExpressionError:
        assert countdown.extract(answer(text)) is None


Tree = tuple[str, Fraction, tuple[int, ...]]


def combined(children: tuple[Tree, str, Tree]) -> Tree:
    (left, a, used), symbol, (right, b, more) = children
    symbol = "+" if symbol == "/" and b == 0 else symbol
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    return f"({left} {symbol} {right})", apply[symbol](a, b), used + more


def negated(tree: Tree) -> Tree:
    return f"-{tree[0]}", -tree[1], tree[2]


TREES = st.recursive(
    st.integers(0, 10**6).map(lambda n: (str(n), Fraction(n), (n,))),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(combined) | inner.map(negated)
    ),
    max_leaves=8,
)


@given(TREES)
def test_written_trees_evaluate_to_their_fraction_and_list_their_numbers(tree):
    text, value, numbers = tree
    evaluated = evaluate(text)
    assert evaluated.value == value
    assert evaluated.numbers == numbers


ROWS = [{"nums": [i, i + 1, 7], "target": 2 * i + 8} for i in range(1, 61)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_data_with_nums_and_target_is_split_as_generated_problems_are(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    task = countdown.build(CountdownTask(path=path, prefill="<think>"))
    assert len(task.train) + len(task.validation) + len(task.test) == len(ROWS)
    assert all(split_of(p.id) == "test" for p in task.test) and task.train[0].prefill == "<think>"
    assert task.train[0].columns == {"numbers": [1, 2, 7], "target": 10}
    cut = countdown.build(CountdownTask(path=path, train_size=5, test_size=2))
    assert [len(s) for s in (cut.train, cut.validation, cut.test)] == [5, 2, 2]
    write_rows(tmp_path / "train.jsonl", ROWS[:50])
    write_rows(tmp_path / "test.jsonl", ROWS[50:])
    (tmp_path / "rows.jsonl").unlink()
    given = countdown.build(CountdownTask(path=str(tmp_path)))
    assert len(given.test) == 10 and len(given.train) + len(given.validation) == 50
    assert given.validation


def test_the_hub_is_asked_for_the_dataset_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: Any, **named: Any) -> datasets.DatasetDict:
        asked.append((arguments, named))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = countdown.build(CountdownTask(path="Jiayi-Pan/Countdown-Tasks-3to4"))
    assert len(task.train) > 40
    assert asked == [(("Jiayi-Pan/Countdown-Tasks-3to4", None), {"revision": None})]


@pytest.mark.parametrize(
    "row",
    [
        {"nums": "1,2", "target": 3},
        {"nums": [1, 2.5, 3], "target": 3},
        {"nums": [1], "target": 1},
        {"nums": list(range(1, 9)), "target": 3},
        {"nums": [1, 2, 3], "target": "6"},
        {"nums": [True, 2, 3], "target": 6},
        {"target": 6},
    ],
)
def test_rows_that_are_no_problem_are_named(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*ROWS, row])
    with pytest.raises(DataError, match=r"line 61: countdown rows have the columns nums"):
        countdown.build(CountdownTask(path=path))


def test_a_path_that_is_nothing_says_so() -> None:
    for path in ("./nowhere", "nowhere.jsonl", "/no/such/folder"):
        with pytest.raises(DataError, match="there is no such file or folder"):
            countdown.build(CountdownTask(path=path))
