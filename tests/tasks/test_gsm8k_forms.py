"""The forms of a GSM8K answer: each knows its own, and none takes two answers for one."""

import pytest

from groupwise.config.tasks import CountdownTask, Gsm8kTask
from groupwise.recipe.tiny import SAMPLES
from groupwise.tasks import countdown, gsm8k
from groupwise.tasks.gsm8k_forms import FORMS


def example(name: str, final: str, reasoning: str = "16-3=13, 13+5=18") -> str:
    form = FORMS[name].example
    return form.replace("{reasoning}", reasoning).replace("{final}", final)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_knows_its_own_example_and_no_other(name: str) -> None:
    form = FORMS[name]
    for other in FORMS:
        assert form.formatted(example(other, "18")) == (other == name), other
    assert form.correct(example(name, "18"), "18") and not form.correct(example(name, "13"), "18")
    assert form.extract(example(name, "1,018")) == "1018"
    assert not form.formatted("") and not form.formatted(example(name, "18") + "\nand more")


@pytest.mark.parametrize("name", ["tags", "reasoning", "working_out"])
def test_a_right_answer_in_another_usual_form_counts(name: str) -> None:
    assert FORMS[name].correct("16-3=13, 13+5=18\n#### 18", "18")


def test_a_solution_of_two_numbers_is_none() -> None:
    form = FORMS["working_out"]
    assert form.correct(example("working_out", "-18"), "-18")
    assert not form.correct(example("working_out", "9 or 18"), "18")
    assert not form.correct(example("working_out", "18") * 2, "18")


@pytest.mark.parametrize("name", FORMS)
def test_the_task_asks_for_the_form_that_it_judges(name: str) -> None:
    given = {"path": str(SAMPLES / "gsm8k"), "answer_format": name, "few_shot": 1}
    task = gsm8k.build(Gsm8kTask.model_validate({**given, "validation_size": 4}))
    system, _, shown, _ = task.train[0].prompt
    assert isinstance(system, dict) and system["content"] == FORMS[name].system
    assert isinstance(shown, dict) and task.formatted(completion=shown["content"])


def test_countdown_answers_can_be_opened_for_the_model() -> None:
    settings = CountdownTask(train_size=2, test_size=1, prefill="<think>")
    assert countdown.build(settings).train[0].prefill == "<think>"
    assert countdown.build(CountdownTask(train_size=2, test_size=1)).train[0].prefill == ""
