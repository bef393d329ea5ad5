"""`groupwise.train` from Python: data, models and callbacks as objects, and wrong ones named."""

import inspect
import pathlib
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.config import Config
from groupwise.errors import ConfigError, DataError, ModelError
from groupwise.policy.resolve import TINY
from groupwise.tracking.run import read_metrics
from runs import digest, small_config

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(4)]
FEW: dict[str, Any] = {"steps": 2, "checkpoint": {"every": 1}}


def brevity(texts: list[str], **columns: object) -> list[float]:
    return [-len(text) / 100 for text in texts]


def loaded() -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(TINY)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> groupwise.Result:
    """The run that others must equal: by name, and with a reference."""
    config = small_config("steps=2", "algorithm.kl_weight=0.01", "checkpoint.every=1")
    return groupwise.train(config, tmp_path_factory.mktemp("plain") / "run", quiet=True)


def test_the_signature_is_there_to_be_read() -> None:
    parameters = inspect.signature(groupwise.train).parameters
    wanted = {"config", "out", "model", "tokenizer", "data", "task", "rewards", "callbacks"}
    assert parameters.keys() >= wanted
    assert "steps=20" in (groupwise.train.__doc__ or "")


@pytest.mark.slow
def test_a_recipe_by_name_with_settings_by_keyword(tmp_path: pathlib.Path) -> None:
    seen: list[int] = []
    small = small_config().model_dump(mode="json")
    small |= {"task": {"kind": "arithmetic", "train_size": 64, "test_size": 8}}
    small["steps"] = 5

    def stop(event: groupwise.Event) -> None:
        seen.append(event.step)
        assert event.steps == 5 and event.metrics["reward"] >= 0 and event.model is not None
        if event.step == 2:
            event.stop("seen enough")

    result = groupwise.train("demo", tmp_path / "run", callbacks=[stop], quiet=True, **small)
    assert seen == [1, 2]
    assert result.summary["status"] == "stopped: seen enough" and result.summary["steps"] == 2
    assert (result.model_folder / "config.json").is_file() and result.report.is_file()
    again = groupwise.train("demo", tmp_path / "run", quiet=True, **{**small, "steps": 3})
    assert again.summary["status"] == "finished" and again.summary["steps"] == 3


def test_settings_may_be_a_dict_of_plain_or_dotted_names() -> None:
    few = {"steps": 2, "batch.prompts": 4, "optimizer": {"lr": 1e-6}}
    config = groupwise.load_recipe("demo", few)
    assert (config.steps, config.batch.prompts, config.optimizer.lr) == (2, 4, 1e-6)
    assert config.optimizer.schedule == groupwise.load_recipe("demo").optimizer.schedule
    assert config == groupwise.load_recipe(
        "demo", ["steps=2", "batch.prompts=4", "optimizer.lr=0.000001"]
    )


def test_a_config_is_changed_by_replace_and_says_so() -> None:
    config = Config()
    assert config.replace(steps=7, batch={"prompts": 3}).batch.prompts == 3
    assert config.replace(algorithm="dapo").algorithm.preset == "dapo"
    assert config.replace(timing="ahead").algorithm.mismatch == "token"
    assert config.replace() == config
    with pytest.raises(ConfigError, match=r"config.replace\(steps=10\)"):
        config.steps = 3
    with pytest.raises(ConfigError, match=r"config.replace"):
        config.batch.prompts = 3
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        config.replace(stepz=3)


@pytest.mark.parametrize(
    "data", [ROWS, Dataset.from_list(ROWS), {"train": ROWS[4:], "test": ROWS[:4]}]
)
def test_data_may_be_dicts_or_a_dataset_or_either_by_split(data: Any) -> None:
    task = groupwise.data_task(data)
    assert task.correct is not None and len(task.test) > 0
    assert task.train[0].columns["answer"].isdigit()
    count = len(task.train) + len(task.validation) + len(task.test)
    assert count == len(ROWS)


def test_rows_without_an_answer_and_with_other_names() -> None:
    rows = [{"question": f"say {n}", "loud": n % 2 == 0} for n in range(9)]
    task = groupwise.data_task(rows, prompt="question", system="Be brief.")
    assert task.correct is None and task.train[0].prompt[0] == {
        "role": "system", "content": "Be brief."
    }  # fmt: skip
    assert groupwise.Task("words", task.train).correct is None


def test_a_run_on_rows_of_ones_own(tmp_path: pathlib.Path) -> None:
    config = small_config("steps=1")
    data = Dataset.from_list(ROWS)
    run = tmp_path / "run"

    def short(texts: list[str], **columns: object) -> list[float]:
        return brevity(texts)  # not by its own name: a process would import this file, for seconds

    result = groupwise.train(config, run, data=data, rewards=short, quiet=True)
    assert result.metrics[0]["rewards/short"] < 0


def test_folders_differ_by_data_and_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    from groupwise.training.api import default_folder
    from groupwise.training.arguments import arguments_of

    folders = {
        default_folder(given)
        for given in (
            arguments_of("demo", {}, {}, data=ROWS),
            arguments_of("demo", {}, {}, data=ROWS[:-1]),
            arguments_of("demo", {}, {"rewards": [brevity]}, data=ROWS),
            arguments_of("demo", {"steps": 3}, {"model": loaded()[0]}),
        )
    }
    assert len(folders) == 4 and not any(":" in str(folder) for folder in folders)


def test_a_model_in_memory_is_trained_as_one_with_a_name(
    plain: groupwise.Result, tmp_path: pathlib.Path
) -> None:
    model, tokenizer = loaded()
    before = weights(model)
    config = small_config("steps=2", "algorithm.kl_weight=0.01", "checkpoint.every=1")
    result = groupwise.train(config, tmp_path / "run", model=model, tokenizer=tokenizer, quiet=True)
    assert result.model is model and result.tokenizer is tokenizer
    assert not torch.equal(weights(model), before)
    assert digest(result.model_folder) == digest(plain.model_folder)
    assert torch.equal(weights(plain.model), weights(model))


def test_a_run_with_a_model_in_memory_goes_on_with_the_same_reference(
    plain: groupwise.Result, tmp_path: pathlib.Path
) -> None:
    config = small_config("steps=2", "algorithm.kl_weight=0.01", "checkpoint.every=1")
    run = tmp_path / "run"

    def fail(event: groupwise.Event) -> None:
        if event.step == 2:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        groupwise.train(config, run, model=loaded()[0], callbacks=[fail], quiet=True)
    result = groupwise.train(config, run, model=loaded()[0], quiet=True)
    assert digest(result.model_folder) == digest(plain.model_folder)
    assert read_metrics(run)[1]["kl"] == plain.metrics[1]["kl"]


@pytest.mark.slow
def test_a_peft_model_in_memory_trains_its_adapter_and_goes_on(tmp_path: pathlib.Path) -> None:
    from peft import LoraConfig, get_peft_model

    def adapted() -> Any:
        torch.manual_seed(0)
        lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
        return get_peft_model(loaded()[0], lora)

    config = small_config("steps=2", "checkpoint.every=1", "algorithm.kl_weight=0.01")
    tokenizer = loaded()[1]
    model = adapted()
    whole = groupwise.train(config, tmp_path / "a", model=model, tokenizer=tokenizer, quiet=True)
    assert whole.model is model
    assert (whole.model_folder / "adapter_model.safetensors").is_file()
    run = tmp_path / "b"
    first = config.replace(steps=1, optimizer={"schedule": "constant"})
    groupwise.train(first, run, model=adapted(), tokenizer=tokenizer, quiet=True)
    again = groupwise.train(
        first.replace(steps=2), run, model=adapted(), tokenizer=tokenizer, quiet=True
    )
    assert torch.equal(weights(again.model), weights(model))


def test_a_result_has_history_and_a_page_for_notebooks(plain: groupwise.Result) -> None:
    assert list(plain.history.index) == [1, 2] and "reward" in plain.history
    html = plain._repr_html_()
    assert "<svg" in html and "accuracy (greedy)" in html and "groupwise view" in html
    assert plain.tokenizer("1+1=")["input_ids"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": [{"prompt": "a"}]}, ConfigError, "data goes under data="),
        ({"task": ROWS}, DataError, "rows go under data="),
        ({"data": ROWS, "task": "arithmetic"}, ConfigError, "not both"),
        ({"callbacks": brevity}, ConfigError, "takes a list"),
        ({"trackers": [3]}, ConfigError, "trackers= takes"),
        ({"trackers": 3}, ConfigError, "trackers= takes"),
        ({"out": 3}, ConfigError, "path of a folder"),
        ({"data": 3}, DataError, "list of dicts such as"),
        ({"data": ["a", "b"]}, DataError, r"train\[0\] is a str"),
        ({"data": [{"text": "a"}]}, DataError, "no column 'prompt'"),
        ({"data": {"eval": ROWS}}, DataError, "'eval'"),
        ({"rewards": [3]}, ConfigError, "rewards= takes functions"),
        ({"rewards": ["correct", brevity]}, ConfigError, "either all names or none"),
        ({"model": 3}, ModelError, "not an int"),
        ({"tokenizer": 3}, ConfigError, "give model= too"),
        ({"engine": 3}, ConfigError, "engine= takes a function"),
        ({"environment": 3}, ConfigError, "EnvironmentFactory"),
        ({"callbacks": [3]}, ConfigError, "on_step"),
        ({"stepz": 3}, ConfigError, "did you mean 'steps'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_our_words(
    arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(error, match=message):
        groupwise.train(**{"config": "demo", "out": tmp_path / "run", **arguments})
    assert not (tmp_path / "run").exists()
