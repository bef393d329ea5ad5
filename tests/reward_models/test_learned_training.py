"""The whole way: answers of the embedded model, a reward model fitted on them, GRPO against it."""

import shutil
from pathlib import Path

import pytest

from groupwise.config import Config
from groupwise.load import load_parts
from groupwise.recipe import load_recipe
from groupwise.reward_models.examples import Examples, label
from groupwise.reward_models.fit import FitSettings, fit, measure
from groupwise.reward_models.model import Kind, new_reward_model, save_reward_model
from groupwise.tasks.base import Split
from groupwise.training.api import train
from runs import SMALL, fingerprint, small_config

DEMO = ("device=cpu", "task.test_size=60", "tracking.tensorboard=false", "checkpoint.every=0")


@pytest.fixture(scope="module")
def labelled() -> tuple[Examples, Examples]:
    """Answers to training problems and to held-out ones, judged by the task."""
    config = load_recipe("demo", DEMO)
    halves = []
    counts: dict[Split, int] = {"train": 100, "validation": 40}
    with load_parts(config) as parts:
        for split, count in counts.items():
            groups = parts.sample_groups(
                parts.problems[split][:count], config.rollout.sampling,
                group_size=8, step="labelled",
            )  # fmt: skip
            halves.append(label(groups, config, "the embedded model"))
    return halves[0], halves[1]


def fitted_folder(kind: Kind, labelled: tuple[Examples, Examples], folder: Path) -> float:
    """A tiny encoder fitted on the answers, saved; its AUC on problems that it never saw."""
    train_half, held_out = labelled
    made = new_reward_model(kind, "tiny-encoder", tokenizer="tiny", max_tokens=160, seed=0)
    epochs = 1 if kind == "preference" else 5
    fit(made, train_half, held_out, FitSettings(epochs=epochs, lr=2e-3))
    save_reward_model(made, folder)
    return measure(made, held_out).auc


def against(folder: Path, options: str) -> Config:
    reward = f'rewards=[{{name: "model:{folder}", options: {{{options}}}}}]'
    settings = ("steps=7", "eval.k=1", "eval.problems=60", "eval.every=0", "optimizer.lr=1e-4")
    smaller = ("batch.prompts=12", "batch.group_size=6", "tracking.rollouts=0")
    return load_recipe("demo", [*DEMO, *settings, *smaller, reward])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [("scalar", "output: probability"), ("preference", "threshold: 0.1")],
)
def test_a_tiny_encoder_tells_right_from_wrong_and_grpo_against_it_raises_true_accuracy(
    kind: Kind, options: str, labelled: tuple[Examples, Examples], tmp_path: Path
) -> None:
    assert fitted_folder(kind, labelled, tmp_path / "rm") > 0.9
    result = train(against(tmp_path / "rm", options), tmp_path / "run", quiet=True)
    before, after = (result.summary[moment]["accuracy"] for moment in ("before", "after"))
    assert before < 0.4 and after > before + 0.2, (before, after)


@pytest.mark.slow
def test_a_run_with_a_learned_reward_resumes_exactly(
    labelled: tuple[Examples, Examples], tmp_path: Path
) -> None:
    few = Examples(scored=labelled[0].scored[:200])
    made = new_reward_model("preference", "tiny-encoder", tokenizer="tiny", max_tokens=96, seed=0)
    fit(made, few, few, FitSettings(epochs=1))
    save_reward_model(made, tmp_path / "rm")
    reward = f'rewards=[{{name: "model:{tmp_path / "rm"}", options: {{threshold: 0.01}}}}]'
    whole = train(small_config(reward), tmp_path / "whole", quiet=True)
    train(small_config(reward, "steps=2"), tmp_path / "half", quiet=True)
    (tmp_path / "half" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "half" / "model")
    assert SMALL["steps"] == 4
    resumed = train(small_config(reward), tmp_path / "half", quiet=True)
    assert fingerprint(resumed.folder) == fingerprint(whole.folder)
