"""TRL's settings as a recipe: the round trip, TRL's own defaults, and what is said."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.interop.fields import DIRECT, trl_fields
from groupwise.interop.grpo_fields import ALL
from groupwise.interop.import_trl import from_trl, read_fields
from groupwise.objective.objective import PRESETS
from groupwise.recipe import load_recipe
from runs import small_config

KEPT = ("batch", "algorithm", "optimizer", "reference", "checkpoint", "seed", "steps")
NOT_IN_TRL = {"batch": ("tokens_per_microbatch", "layout"), "algorithm": ("preset",)}


def parts(config: Config) -> dict[str, Any]:
    tree = config.model_dump(mode="json")
    for block, names in NOT_IN_TRL.items():
        for name in names:
            tree[block].pop(name)
    return {name: tree[name] for name in KEPT}


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("gmpo", "reinforce", "rloo")])
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("batch.minibatches=3", "batch.epochs=2", "optimizer.warmup=4", "checkpoint.every=5"),
        ("algorithm.kl_weight=0.04", "algorithm.kl_unbiased=true", "algorithm.scale=batch"),
        ("algorithm.kl_weight=0.1", "reference.kind=mixed", "reference.every=7", "seed=5"),
        ("algorithm.entropy_target=2.0", "algorithm.mask_truncated=true", "optimizer.lr=3e-6"),
        ("algorithm.mismatch=token", "algorithm.mismatch_max=2.0", "optimizer.schedule=cosine"),
    ],
)
def test_what_is_exported_comes_back(preset: str, more: tuple[str, ...]) -> None:
    if preset == "gdpo":  # it has one scale
        more = tuple(setting for setting in more if setting != "algorithm.scale=batch")
    config = small_config(f"algorithm={preset}", *more)
    fields = trl_fields(config)
    back = from_trl(fields.values).config
    expected, found = parts(config), parts(back)
    assert found == expected
    assert back.rollout.sampling == config.rollout.sampling


def test_the_defaults_are_those_of_the_installed_trl() -> None:
    trl = pytest.importorskip("trl")
    fields = {f.name: f for f in dataclasses.fields(trl.GRPOConfig)}
    assert fields.keys() == ALL.keys() and set(DIRECT.values()) <= ALL.keys()
    for name, value in ALL.items():
        field = fields[name]
        made = field.default_factory is not dataclasses.MISSING
        theirs = field.default_factory() if made else field.default  # pyright: ignore
        assert getattr(theirs, "value", theirs) == value, name


def test_an_empty_file_is_trls_defaults_and_says_where_ours_differ() -> None:
    found = from_trl({})
    config = found.config
    assert (config.batch.prompts, config.batch.group_size, config.optimizer.lr) == (1, 8, 1e-6)
    assert config.algorithm.aggregate == "token_mean" and config.optimizer.schedule == "linear"
    assert config.gradient_checkpointing is True and config.seed == 42
    said = " ".join(found.defaults)
    for name in ("learning_rate", "lr_scheduler_type", "loss_type", "max_completion_length"):
        assert f"{name} is left to TRL" in said
    assert "temperature" not in said and found.lost == {}


def test_what_has_no_counterpart_is_said_and_what_is_off_is_not() -> None:
    found = from_trl(
        {"vllm_model_impl": "transformers", "num_train_epochs": 2, "hub_token": None,
         "max_tool_calling_iterations": 4, "use_liger_kernel": False, "output_dir": "x",
         "label_smoothing_factor": 0.0, "bta": 0.04, "logging_step": 5}
    )  # fmt: skip
    said = " ".join(found.lost.values())
    assert "vllm_model_impl=transformers" in said and "max_tool_calling_iterations=4" in said
    assert "num_train_epochs=2 (set steps=" in said
    assert "use_liger" not in said and "output_dir" not in said and "hub_token" not in said
    assert "label_smoothing" not in said, "TRL's own default is nothing to say"
    assert found.lost["bta"] == "bta is no field of TRL's GRPOConfig: did you mean beta?"
    assert "did you mean logging_steps?" in found.lost["logging_step"]


def test_vllm_and_evaluation_have_counterparts() -> None:
    fields = {"use_vllm": True, "eval_strategy": "steps", "eval_steps": 6, "num_iterations": 2}
    found = from_trl(fields)
    assert found.lost == {} and found.config.engine.kind == "vllm"
    assert found.config.engine.model_dump()["memory_share"] == 0.3
    assert found.config.eval.every == 3, "TRL counts optimizer steps, and a rollout has two"
    assert found.config.algorithm.mismatch == "sequence", "vLLM is corrected for by default"
    uncorrected = from_trl({"use_vllm": True, "vllm_importance_sampling_correction": False})
    assert uncorrected.config.algorithm.mismatch == "none"
    served = from_trl({"use_vllm": True, "vllm_mode": "server", "vllm_server_host": "10.0.0.1"})
    assert served.config.place.model_dump()["urls"] == ("http://10.0.0.1:8000",)


def test_a_config_object_is_read_and_only_what_it_changes_is_said() -> None:
    trl = pytest.importorskip("trl")
    args = trl.GRPOConfig("x", beta=0.04, max_steps=6, label_smoothing_factor=0.1, use_cpu=True)
    found = from_trl(args)
    assert found.config.algorithm.kl_weight == 0.04 and found.config.steps == 6
    assert set(found.lost) == {"label_smoothing_factor"}


def test_a_script_is_told_what_to_do(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from trl import GRPOTrainer\n")
    with pytest.raises(ConfigError, match=r"from groupwise\.trl import GRPOConfig, GRPOTrainer"):
        read_fields(script)


def test_batches_are_counted_as_trl_counts_them() -> None:
    fields = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8,
              "num_generations": 16, "steps_per_generation": 16, "num_iterations": 3,
              "max_steps": 60}  # fmt: skip
    config = from_trl(fields).config
    assert (config.batch.prompts, config.batch.minibatches, config.batch.epochs) == (4, 2, 3)
    assert config.steps == 10
    with pytest.raises(ConfigError, match="whole groups"):
        from_trl({"per_device_train_batch_size": 3})


def test_the_command_lines_model_data_and_lora_are_read() -> None:
    config = from_trl(
        {"model_name_or_path": "org/model", "dataset_name": "org/data", "use_peft": True,
         "lora_r": 8, "lora_alpha": 16, "load_in_4bit": True, "reward_weights": [1.0, 0.5],
         "reward_funcs": ["my.module.short", "format"]}
    ).config  # fmt: skip
    assert config.model == "org/model" and config.quantization == "nf4"
    assert config.adapter is not None and (config.adapter.rank, config.adapter.alpha) == (8, 16)
    assert [(r.name, r.weight) for r in config.rewards] == [("my.module:short", 1.0),
                                                           ("format", 0.5)]  # fmt: skip
    task = config.task.model_dump()
    assert (task["path"], task["prompt"], task["answer"]) == ("org/data", "prompt", None)


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("gsm8k", "gsm8k"),
        ("deepmind/aqua_rat", "aqua_rat"),
        ("allenai/math_qa", "mathqa"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("Jiayi-Pan/Countdown-Tasks-3to4", "countdown"),
        ("trl-lib/ultrafeedback-prompt", "hub"),
    ],
)
def test_a_known_dataset_is_imported_as_its_task(dataset: str, kind: str) -> None:
    imported = from_trl({"dataset_name": dataset, "dataset_config": "main"})
    assert imported.config.task.kind == kind
    assert any(dataset in note for note in imported.notes)


@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_a_file_becomes_a_recipe_that_loads(tmp_path: pathlib.Path, ending: str) -> None:
    fields = {"beta": 0.04, "num_generations": 4, "max_steps": 7, "neftune_noise_alpha": 5}
    source = tmp_path / f"grpo{ending}"
    source.write_text(json.dumps(fields) if ending == ".json" else yaml.safe_dump(fields))
    result = CliRunner().invoke(app, ["import", str(source), "--out", str(tmp_path / "mine.yaml")])
    assert result.exit_code == 0, result.output
    assert "no counterpart: neftune_noise_alpha=5" in result.output
    config = load_recipe(str(tmp_path / "mine.yaml"))
    assert config.algorithm.kl_weight == 0.04 and config.steps == 7
    assert config.algorithm.kl_unbiased, "TRL's default, once KL is on"
    assert "# no counterpart: neftune_noise_alpha=5" in (tmp_path / "mine.yaml").read_text()
    again = CliRunner().invoke(app, ["import", str(source), "--out", str(source)])
    assert isinstance(again.exception, ConfigError)


@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_files_that_are_no_settings_are_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_fields(path)
    with pytest.raises(ConfigError):
        read_fields(tmp_path / "none.yaml")


def test_a_few_lines_that_stand_for_billions_of_values_are_said_briefly() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    found = from_trl(yaml.safe_load(bomb))
    assert len(found.lost) == 12 and max(map(len, found.lost.values())) < 1000


value = st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=9)


@given(st.dictionaries(st.sampled_from(sorted(ALL)), value | st.lists(value, max_size=3)))
def test_any_values_give_a_recipe_or_a_clear_refusal(fields: dict[str, Any]) -> None:
    try:
        found = from_trl(fields)
    except ConfigError as error:
        assert str(error)
    else:
        assert isinstance(found.config, Config)
