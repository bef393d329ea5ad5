"""TRL's trainer on our loop: its arithmetic, its numbers, its callbacks, and what is refused."""

import json
import pathlib
import threading
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import HfArgumentParser, TrainerCallback

from groupwise.errors import ConfigError, DataError
from groupwise.tracking.run import read_metrics
from groupwise.trl import GRPOConfig, GRPOTrainer
from groupwise.trl.rates import rates
from groupwise.trl.settings import Length, imported_args, length_of

SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 4,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
}


def dataset() -> Dataset:
    return Dataset.from_dict({"prompt": [f"{a}+{a}=" for a in range(6)], "answer": list(range(6))})


def letters(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text))) for text in completions]


def make(folder: pathlib.Path, rewards: Any = letters, **fields: Any) -> GRPOTrainer:
    more = {name: fields.pop(name) for name in ("callbacks", "eval_dataset") if name in fields}
    args = GRPOConfig(str(folder), **{**SMALL, **fields})
    return GRPOTrainer("tiny", rewards, args, dataset(), **more)


def config(**fields: Any) -> GRPOConfig:
    return GRPOConfig(**{"output_dir": "unused", **SMALL, **fields})


@pytest.mark.parametrize(
    ("fields", "prompts", "updates", "rollouts"),
    [
        ({"num_train_epochs": 2}, 1, 1, 12),
        ({"num_train_epochs": 2, "gradient_accumulation_steps": 2}, 2, 1, 6),
        ({"num_train_epochs": 1, "steps_per_generation": 4}, 4, 4, 1),
        ({"max_steps": 12, "steps_per_generation": 2, "num_iterations": 3}, 2, 6, 2),
        ({"max_steps": 3, "steps_per_generation": 1, "gradient_accumulation_steps": 2}, 2, 1, 3),
    ],
)
def test_batches_and_epochs_are_counted_as_trl_counts_them(
    fields: dict[str, Any], prompts: int, updates: int, rollouts: int
) -> None:
    args = config(**fields)
    imported = imported_args(args)
    length = length_of(args, imported, rows=6)
    assert imported.tree["batch"]["prompts"] == prompts
    assert (length.updates, length.rollouts) == (updates, rollouts)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"use_liger_kernel": True}, "chunks already"),
        ({"generation_kwargs": {"num_beams": 2}}, "num_beams"),
        ({"router_aux_loss_coef": 0.1}, "load-balancing"),
        ({"gradient_accumulation_steps": 3, "steps_per_generation": 4}, "do not fit together"),
    ],
)
def test_what_is_not_followed_is_refused_with_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        imported_args(config(**fields))


def test_a_command_line_fills_the_config_as_it_does_in_trl() -> None:
    words = "--output_dir out --scale_rewards none --max_steps 4 --use_cpu --report_to none"
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(words.split())  # pyright: ignore
    assert (args.scale_rewards, args.max_steps, args.num_generations) == ("none", 4, 8)
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(words.split()[:2])  # pyright: ignore
    assert args.scale_rewards == "group"


def test_learning_rates_are_those_of_transformers() -> None:
    args = config(lr_scheduler_type="linear", warmup_steps=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    set_rates = rates(args, Length(updates=2, rollouts=5, rollouts_in_epoch=None), None)
    found = [set_rates(optimizer, step / 2) for step in range(10)]
    assert found == pytest.approx([0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


class Watching(TrainerCallback):
    def __init__(self, stop_at: int = 0) -> None:
        self.heard: list[str] = []
        self.stop_at = stop_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("train_begin")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append(f"step_end {state.global_step}")
        control.should_training_stop = control.should_training_stop or (
            state.global_step == self.stop_at
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.heard.append("log")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("evaluate")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("save")


def test_a_run_logs_calls_back_and_leaves_a_run_folder(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def reward(
        prompts: Any, completions: Any, completion_ids: Any, answer: Any, **more: Any
    ) -> list[float]:
        more["log_metric"]("longest", max(map(len, completions)))
        more["log_extra"]("answer", answer)
        seen.update(ids=completion_ids, step=more["trainer_state"].global_step, count=len(prompts))
        return [float(len(set(text))) for text in completions]

    heard = Watching()
    trainer = make(
        tmp_path, reward, max_steps=2, gradient_accumulation_steps=2, eval_strategy="steps",
        eval_steps=1, per_device_eval_batch_size=4, callbacks=[heard], log_completions=True,
        eval_dataset=Dataset.from_dict({"prompt": ["1+1="], "answer": [99]}),
    )  # fmt: skip
    output = trainer.train()
    trainer.end()
    assert output.global_step == 2 and seen["step"] == 2
    assert all(isinstance(token, int) for token in seen["ids"][0])
    first = trainer.state.log_history[0]
    for name in ("loss", "grad_norm", "learning_rate", "reward", "rewards/reward/mean", "longest",
                 "completions/mean_length", "frac_reward_zero_std", "entropy"):  # fmt: skip
        assert name in first, name
    assert "train_loss" in trainer.state.log_history[-1]
    assert any("eval_longest" in line for line in trainer.state.log_history)
    steps = [line for line in heard.heard if line.startswith(("train", "step", "eva", "save"))]
    assert steps == ["train_begin", "step_end 1", "evaluate", "step_end 2", "evaluate", "save"]
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2] and "eval/reward" in lines[1]
    assert lines[0]["reward"] == pytest.approx(first["reward"])
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / "checkpoint-2" / "config.json").is_file()
    extra = trainer.answers.extra["answer"]
    assert len(extra) == 8 and 99 not in extra, "the evaluation's are not the next rollout's"
    shown = capsys.readouterr().out
    assert shown.count("Step 1") == shown.count("Step 2") == 1
    assert f"groupwise view {tmp_path}" in shown.replace("\n", "")


def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: pathlib.Path) -> None:
    fields = {"max_steps": 4, "beta": 0.1, "save_steps": 2}
    whole = make(tmp_path / "whole", **fields)
    whole.train()
    make(tmp_path / "cut", **fields, callbacks=[Watching(stop_at=2)]).train()
    again = make(tmp_path / "cut", **fields)
    again.train(resume_from_checkpoint=True)
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, again.model.get_parameter(name)), name
    assert [line["step"] for line in again.state.log_history] == [1, 2, 3, 4, 4]
    assert len(read_metrics(tmp_path / "cut")) == 4


@pytest.mark.slow
def test_an_earlier_run_is_set_aside_and_other_files_stay(tmp_path: pathlib.Path) -> None:
    make(tmp_path, max_steps=1).train()
    (tmp_path / "notes.txt").write_text("mine")
    make(tmp_path, max_steps=1).train()
    assert (tmp_path / "before-restart-1" / "metrics.jsonl").is_file()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_data_without_a_length_needs_max_steps_and_few_rows_are_refused() -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "1+1="}]))
    with pytest.raises(ConfigError, match="max_steps"):
        GRPOTrainer("tiny", letters, config(), stream)
    with pytest.raises(DataError, match="fewer than the 16 prompts"):
        GRPOTrainer("tiny", letters, config(gradient_accumulation_steps=16), dataset())


class Doubling:
    """An environment as TRL has it: made without arguments, and used again."""

    made = 0

    def __init__(self) -> None:
        Doubling.made += 1

    def reset(self, prompt: Any, **row: Any) -> None:
        self.text, self.thread = prompt, threading.current_thread().name

    def double(self, number: int) -> int:
        """Doubles a number.

        Args:
            number: The number.
        """
        return 2 * number

    def get_reward(self) -> float:
        return float(len(self.text))


def test_rewards_get_the_environments_of_their_answers(tmp_path: pathlib.Path) -> None:
    seen: list[Any] = []

    def matches(prompts: Any, environments: Any, **_: Any) -> list[float]:
        seen.append([*environments])
        assert [e.text for e in environments] == list(prompts)
        return [float(n % 3) for n, _ in enumerate(environments)]

    Doubling.made = 0
    trainer = GRPOTrainer(
        "tiny", matches, config(output_dir=str(tmp_path), max_steps=2, steps_per_generation=2,
                                gradient_accumulation_steps=2),
        dataset(), environment_factory=Doubling,
    )  # fmt: skip
    trainer.train()
    assert trainer.reward_func_names == ["matches", "Doubling"]
    assert trainer.environments == seen[1] and {*map(id, seen[0])} == {*map(id, seen[1])}
    assert Doubling.made == 8, "eight answers a rollout; those of the first are used again"
    assert {e.thread for e in seen[0]} == {threading.main_thread().name}
    history = trainer.state.log_history[0]
    assert history["rewards/Doubling/mean"] == 4.0 and "rewards/matches/mean" in history


def test_a_reward_that_names_environments_needs_some() -> None:
    with pytest.raises(ConfigError, match="environment_factory"):
        GRPOTrainer("tiny", lambda environments: [], config(), dataset())
