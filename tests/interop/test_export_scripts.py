"""Scripts for TRL and optimum-neuron: every setting lands where it belongs, and the script runs."""

import ast
import dataclasses
import importlib.util
import json
import pathlib
import shutil
from typing import Any

import pytest
from huggingface_hub import RepoUrl
from typer.testing import CliRunner

from groupwise.batch import make_batch
from groupwise.cli.main import app
from groupwise.errors import ConfigError, ModelError, RunFolderError
from groupwise.interop.fields import trl_fields
from groupwise.interop.folder import push_model
from groupwise.interop.neuron import UNKNOWN_THERE, neuron_fields
from groupwise.interop.rewards import trl_reward
from groupwise.interop.trl import export_trl, trl_script
from groupwise.load import load_parts
from groupwise.objective.assign import assign_advantages
from groupwise.objective.objective import PRESETS
from groupwise.recipe import write_config
from groupwise.rollout.groups import score_groups
from groupwise.training.api import start_state
from groupwise.training.sampler import draw
from groupwise.types import Completion, Group
from runs import small_config
from updates import annotate, update

trl = pytest.importorskip("trl")


def saved(folder: pathlib.Path, *overrides: str) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_config(small_config(*overrides), folder / "config.yaml")
    return folder


def grpo_config(folder: pathlib.Path, *overrides: str) -> Any:
    values = trl_fields(small_config(*overrides)).values
    return trl.GRPOConfig(output_dir=str(folder), **{"bf16": False, **values})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_gives_fields_that_trl_takes(preset: str, tmp_path: pathlib.Path) -> None:
    found = grpo_config(tmp_path, f"algorithm={preset}")
    lost = trl_fields(small_config(f"algorithm={preset}")).lost
    names = {"gspo": "grpo", "rloo": "grpo", "gmpo": "grpo", "gdpo": "grpo", "reinforce": "dapo"}
    assert found.loss_type == names.get(preset, preset)
    assert bool(lost) == (preset in ("gmpo", "reinforce", "rloo"))
    own = {"dapo": 0.28, "bnpo": 0.28, "gspo": 4e-4, "cispo": 5.0}
    clipped = small_config(f"algorithm={preset}").algorithm.surrogate.kind == "clip"
    assert found.epsilon_high == own.get(preset, 0.2 if clipped else None)


@pytest.mark.parametrize(
    ("prompts", "group", "minibatches", "epochs", "budget"),
    [(16, 8, 1, 1, 16384), (16, 8, 4, 2, 16384), (3, 4, 2, 1, 200), (5, 3, 1, 3, 80)],
)
def test_trl_makes_of_the_numbers_the_same_batches(
    tmp_path: pathlib.Path, prompts: int, group: int, minibatches: int, epochs: int, budget: int
) -> None:
    found = grpo_config(
        tmp_path, "steps=10", f"batch.prompts={prompts}", f"batch.group_size={group}",
        f"batch.minibatches={minibatches}", f"batch.epochs={epochs}",
        f"batch.tokens_per_microbatch={budget}",
    )  # fmt: skip
    answers = prompts * group
    assert found.generation_batch_size == answers
    in_update = found.per_device_train_batch_size * found.gradient_accumulation_steps
    assert answers / in_update == minibatches
    assert found.max_steps == 10 * minibatches * epochs
    assert found.per_device_train_batch_size * 80 <= max(budget, 80), "80 tokens an answer"


def test_settings_that_trl_lacks_are_said() -> None:
    config = small_config(
        "batch.prompts=3", "batch.group_size=5", "batch.minibatches=2", "rollout.stop=[stop]",
        "rollout.temperature_spread=[0.7, 1.3]", "rollout.max_draws=2", "optimizer.offload=true",
        "algorithm.baseline=leave_one_out", "algorithm.kl_weight=0.1", "algorithm.kl_estimator=k1",
        "gradient_checkpointing=offload", "compile=all",
    )  # fmt: skip
    said = " ".join(trl_fields(config).lost)
    for name in (
        "batch.minibatches=2", "rollout.stop", "temperature_spread", "max_draws=2", "offload",
        "leave_one_out", "kl_estimator=k1", "compile=all",
    ):  # fmt: skip
        assert name in said, name
    assert trl_fields(small_config()).lost == ()


def test_secrets_that_the_run_folder_does_not_hold_are_said() -> None:
    rewards = 'rewards=[correct, {name: brevity, options: {a: [{my_token: "***"}], words: 3}}]'
    (said,) = trl_fields(small_config(rewards)).lost
    assert said.startswith("brevity: options.a.0.my_token: a run folder keeps no secrets")


def test_a_warm_up_and_a_moving_reference_are_counted_in_optimizer_steps(
    tmp_path: pathlib.Path,
) -> None:
    found = grpo_config(
        tmp_path, "steps=20", "batch.epochs=2", "optimizer.warmup=0.1", "reference.kind=mixed",
        "reference.every=5", "reference.alpha=0.3", "algorithm.kl_weight=0.1", "checkpoint.every=4",
    )  # fmt: skip
    assert found.warmup_steps == 4 and found.lr_scheduler_type == "constant_with_warmup"
    assert found.sync_ref_model and found.ref_model_sync_steps == 10
    assert found.ref_model_mixup_alpha == 0.3 and found.save_steps == 8


def test_the_script_and_its_dataset_hold_the_run(tmp_path: pathlib.Path) -> None:
    run = saved(
        tmp_path / "run", "adapter=lora", "adapter.rank=4", "rollout.overlong_buffer=4",
        "quantization=int8",
    )  # fmt: skip
    out = tmp_path / "there" / "train.py"
    export_trl(str(run), out)
    text = out.read_text()
    calls = {
        node.func.id: {k.arg: k.value for k in node.keywords}
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    known = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert calls["GRPOConfig"].keys() <= known
    assert ast.literal_eval(calls["GRPOConfig"]["reward_weights"]) == [1.0, 0.2, 1.0]
    assert ast.literal_eval(calls["LoraConfig"]["r"]) == 4 and "BitsAndBytesConfig" in calls
    assert "get_soft_overlong_punishment(16, 4)" in text
    lines = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert len(lines) == 64 and len({line["problem_id"] for line in lines}) == 64
    assert lines[0].keys() == {"prompt", "problem_id", "expression", "answer"}


def test_text_of_a_config_cannot_become_code_of_the_script() -> None:
    nasty = 'x"""\nimport os  # \'\'\'\nos.system("boom")'
    config = small_config().model_copy(update={"model": nasty.replace("/", "")})
    try:
        text = trl_script(config, {"run_name": nasty}, [nasty], f"{nasty}.jsonl")
    except ModelError:
        text = trl_script(small_config(), {"run_name": nasty}, [nasty], f"{nasty}.jsonl")
    for node in ast.walk(ast.parse(text)):
        assert not (isinstance(node, ast.Import) and node.names[0].name == "os")
        assert not (isinstance(node, ast.Attribute) and node.attr == "system")


def test_rewards_see_in_trl_what_they_see_here() -> None:
    place = "groupwise.rewards.arithmetic:correct"
    reward = trl_reward("correct", place)
    prompts = [[{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "<think>"}]]
    turn = [[{"role": "assistant", "content": "4</think><answer>4</answer>"}]]
    columns = {"answer": ["4"], "expression": ["2+2"], "trainer_state": object()}
    scores = reward(prompts=prompts, completions=turn, prefill=["<think>"], **columns)
    assert scores == [1.0] and reward.__name__ == "correct"
    plain = reward(["2+2", "2+2"], ["<answer>4</answer>", "5"], answer=["4"] * 2,
                   expression=["2+2"] * 2)  # fmt: skip
    assert plain[1] == 0.0


def test_a_neuron_script_is_python_with_fields_of_its_own_and_none_that_are_unknown(
    tmp_path: pathlib.Path,
) -> None:
    run = saved(tmp_path / "run", "algorithm=cispo", "adapter=lora", "precision=fp32")
    out = tmp_path / "neuron.py"
    words = ["export", str(run), "--to", "neuron", "--out", str(out), "--tensor-parallel", "4"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "cispo" in result.output and "precision=fp32" in result.output
    calls = {
        node.func.id: {k.arg: k.value for k in node.keywords}
        for node in ast.walk(ast.parse(out.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    fields = {name: ast.literal_eval(v) for name, v in calls["NeuronGRPOConfig"].items()
              if name != "output_dir"}  # fmt: skip
    assert not fields.keys() & set(UNKNOWN_THERE)
    wanted = {"tensor_parallel_size": 4, "bf16": True, "use_vllm": True, "vllm_mode": "server"}
    assert fields.items() >= wanted.items() and fields["experimental"] is True
    assert fields["loss_type"] == "grpo" and fields["epsilon_high"] == 0.2
    assert "peft_config" in calls["NeuronGRPOTrainer"]


def test_neuron_says_what_it_loses_beyond_trl() -> None:
    config = small_config("algorithm.entropy_weight=0.01", "optimizer.kind=adamw_8bit")
    assert len(neuron_fields(config, 8).lost) == 2 and trl_fields(config).lost == ()


def test_wrong_words_are_refused(tmp_path: pathlib.Path) -> None:
    run = saved(tmp_path / "run")
    for words, error in (
        (["--to", "jax"], ConfigError),
        (["--to", "trl", "--merge"], ConfigError),
        (["--to", "trl", "--out", "folder"], ConfigError),
    ):
        result = CliRunner().invoke(app, ["export", str(run), *words])
        assert isinstance(result.exception, error)
    with pytest.raises(RunFolderError):
        export_trl(str(tmp_path / "nothing"), tmp_path / "x.py")


def test_a_model_is_pushed_to_a_private_repository(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Hub:
        def __init__(self, token: str | None = None) -> None:
            assert token is None

        def create_repo(self, name: str, **options: Any) -> RepoUrl:
            calls.append((name, options))
            return RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, **options: Any) -> None:
            if options["repo_id"] == "not/mine":
                raise OSError("403 Forbidden\nlong story")
            calls.append(("upload", options))

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert push_model(tmp_path, "me/model") == "https://huggingface.co/me/model"
    assert calls[0] == ("me/model", {"private": True, "exist_ok": True})
    assert calls[1][1]["folder_path"] == tmp_path and calls[1][1]["repo_id"] == "me/model"
    with pytest.raises(ModelError, match=r"403 Forbidden\. Sign in"):
        push_model(tmp_path, "not/mine")


def load_script(path: pathlib.Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_groups(batch: dict[str, Any], parts: Any, size: int) -> list[Group]:
    """TRL's first batch of answers, as groups of ours."""
    problems = {tokens: problem for problem, tokens in parts.problems["train"]}
    groups: dict[tuple[int, ...], list[Completion]] = {}
    for row in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        tokens = batch["completion_ids"][row][batch["completion_mask"][row].bool()].tolist()
        ended = tokens[-1] in parts.policy.eos_ids
        text = parts.policy.tokenizer.decode(tokens, skip_special_tokens=True)
        completion = Completion(tuple(tokens), (0.0,) * len(tokens), "eos" if ended else "length",
                                text)  # fmt: skip
        groups.setdefault(tuple(prompt), []).append(completion)
    assert all(len(completions) == size for completions in groups.values())
    return [Group(problems[p], p, tuple(answers)) for p, answers in groups.items()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dapo", "dr_grpo", "grpo"])
def test_the_exported_script_trains_and_its_first_loss_is_ours(
    tmp_path: pathlib.Path, algorithm: str
) -> None:
    overrides = ["steps=2", f"algorithm={algorithm}", "algorithm.kl_weight=0.05"]
    run = saved(tmp_path / "run", *overrides)
    export_trl(str(run), tmp_path / "train.py")
    training = load_script(tmp_path / "train.py").trainer()
    batches: list[dict[str, Any]] = []
    plain = training._generate_and_score_completions

    def keeping(inputs: Any) -> Any:
        batch = plain(inputs)
        batches.append({key: value.clone() for key, value in batch.items() if key != "tools"
                        and hasattr(value, "clone")})  # fmt: skip
        return batch

    training._generate_and_score_completions = keeping
    training.train()
    assert training.state.global_step == 2
    theirs = training.state.log_history[0]

    config = small_config(*overrides)
    with load_parts(config) as parts:
        state = start_state(parts, None)
        groups = as_groups(batches[0], parts, config.batch.group_size)
        drawn = draw(parts.problems["train"], 0, config.batch.prompts, config.seed)
        assert {g.problem.id for g in groups} == {problem.id for problem, _ in drawn}
        groups = score_groups(groups, parts.scorer, config.rollout)
        groups = annotate(groups, parts.policy, state.reference, config)
        weights = {"correct": 1.0, "format": 0.2}
        groups = assign_advantages(make_batch(groups), config.algorithm, weights).groups
        ours = update(groups, parts.policy, state.optimizer, config, progress=0, entropy_weight=0.0)
    assert ours["loss"] == pytest.approx(float(theirs["loss"]), abs=2e-5)
    assert ours["grad_norm"] == pytest.approx(float(theirs["grad_norm"]), rel=2e-3)
    assert ours["grad_norm"] > 0.1
    shutil.rmtree(tmp_path / "trl-output", ignore_errors=True)
