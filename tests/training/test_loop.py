"""The loop on the embedded model: what it learns, logs and leaves out."""

import math
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from groupwise.load import load_parts
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import start_state, train
from groupwise.types import group_from_json
from runs import digest, small_config, timeless_metrics


def weights(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


QUICK = ("steps=2", "eval.problems=1", "eval.k=1")
"""Where neither many steps nor evaluations are looked at."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("loop") / "plain"
    train(small_config(*QUICK), folder, quiet=True)
    return folder


def test_the_same_seed_gives_the_same_run_and_another_gives_another(
    plain: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    train(small_config(*QUICK), tmp_path / "again", quiet=True)
    train(small_config(*QUICK, "seed=1"), tmp_path / "other", quiet=True)
    assert digest(tmp_path / "again/model") == digest(plain / "model")
    assert timeless_metrics(tmp_path / "again") == timeless_metrics(plain)
    assert digest(tmp_path / "other/model") != digest(plain / "model")


def test_a_run_does_not_depend_on_how_many_processes_score_it(
    plain: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    train(small_config(*QUICK, "reward_processes=3"), tmp_path / "three", quiet=True)
    assert digest(tmp_path / "three/model") == digest(plain / "model")
    assert timeless_metrics(tmp_path / "three") == timeless_metrics(plain)


def test_engines_and_layouts_give_the_same_run(plain: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """One seed, one result: not a matter of who samples and how batches are laid out."""
    others = ["engine.kind=transformers", "batch.layout=padded", "batch.tokens_per_microbatch=60"]
    for other in others:
        train(small_config(*QUICK, other), tmp_path / other, quiet=True)
        for name, expected in weights(plain / "model").items():
            found = weights(tmp_path / other / "model")[name]
            assert (found - expected).abs().max() < 2e-4, (other, name)
        for a, b in zip(read_metrics(plain), read_metrics(tmp_path / other), strict=True):
            assert a["reward"] == b["reward"] and a["tokens"] == b["tokens"]
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)


def test_metrics_tell_what_a_step_did(tmp_path: pathlib.Path) -> None:
    train(small_config("algorithm.kl_weight=0.01", "eval.every=2"), tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    expected = {
        "step", "loss", "reward", "seconds", "accuracy", "entropy", "kl", "clip_low", "clip_high",
        "sampler_gap", "no_spread", "truncated", "tokens", "grad_norm", "lr", "memory_gb",
        "cpu_cores", "tokens_per_second", "seconds/generate", "seconds/reward", "seconds/update",
        "rewards/correct", "rewards/format", "reward_std",
    }  # fmt: skip
    assert expected <= lines[0].keys()
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6) and lines[3]["kl"] > 1e-6
    assert all(line["sampler_gap"] < 1e-4 for line in lines)
    assert "eval/accuracy" in lines[1] and "eval/accuracy" not in lines[0]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    reward = lines[0]["rewards/correct"] + 0.2 * lines[0]["rewards/format"]
    assert lines[0]["reward"] == pytest.approx(reward)


def test_stored_rollouts_hold_every_reward_and_advantage(tmp_path: pathlib.Path) -> None:
    train(small_config("steps=1"), tmp_path / "run", quiet=True)
    (path,) = (tmp_path / "run" / "rollouts").glob("*.gz")
    groups = [group_from_json(line) for line in read_rollouts(path)]
    assert len(groups) == 3
    for group in groups:
        assert len(group.completions) == len(group.rewards) == len(group.advantages) == 4
        for correct, form, reward in zip(
            group.scores["correct"], group.scores["format"], group.rewards, strict=True
        ):
            assert reward == pytest.approx(correct + 0.2 * form)  # pyright: ignore
        assert sum(group.advantages) == pytest.approx(0, abs=1e-6)  # pyright: ignore


@pytest.mark.parametrize("kind", ["frozen", "copied", "mixed"])
def test_reference_kinds(kind: str, tmp_path: pathlib.Path) -> None:
    config = small_config(
        *QUICK, "algorithm.kl_weight=0.1", f"reference.kind={kind}", "reference.every=2",
        "reference.alpha=0.5", "steps=3", "checkpoint.every=1", "checkpoint.keep=9",
    )  # fmt: skip
    train(config, tmp_path / "run", quiet=True)
    saved = tmp_path / "run" / "checkpoints"
    if kind == "frozen":
        assert not (saved / "step-000003" / "reference.safetensors").exists()
        return
    with load_parts(config) as parts:
        start = {name: p.clone() for name, p in parts.policy.model.named_parameters()}
    for step, name in ((1, "start"), (3, "refreshed")):
        reference = load_file(saved / f"step-{step:06d}" / "reference.safetensors")
        after_two = weights(saved / "step-000002" / "model")
        share = {"start": 0.0, "refreshed": 1.0 if kind == "copied" else 0.5}[name]
        for key, value in reference.items():
            expected = torch.lerp(start[key].detach(), after_two[key], share)
            assert torch.allclose(value, expected, atol=1e-6), (step, key)


def test_no_reference_is_loaded_without_kl() -> None:
    with load_parts(small_config("reference.kind=mixed")) as parts:
        assert start_state(parts, None).reference is None


def test_off_policy_epochs_move_the_ratio_and_clip(tmp_path: pathlib.Path) -> None:
    config = small_config(*QUICK, "batch.epochs=3", "batch.minibatches=2", "optimizer.lr=3e-3")
    train(config, tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert all(line["updates"] == 6 for line in lines if line["no_spread"] == 0)
    assert any(line["ratio"] != 1 for line in lines)
    assert any(line["clip_high"] + line["clip_low"] > 0 for line in lines)


def test_dynamic_sampling_replaces_groups_without_spread_within_its_budget(
    tmp_path: pathlib.Path,
) -> None:
    plain = small_config(*QUICK, "batch.group_size=2", "batch.prompts=6")
    dynamic = small_config(*QUICK, "batch.group_size=2", "batch.prompts=6", "rollout.max_draws=3")
    train(plain, tmp_path / "plain", quiet=True)
    train(dynamic, tmp_path / "dynamic", quiet=True)
    before, after = read_metrics(tmp_path / "plain"), read_metrics(tmp_path / "dynamic")
    assert sum(line["no_spread"] for line in before) > sum(line["no_spread"] for line in after)
    assert all(6 <= line["problems_drawn"] <= 18 for line in after)
    assert any(line["problems_drawn"] > 6 for line in after)


def test_overlong_penalty_and_truncation_mask(tmp_path: pathlib.Path) -> None:
    limits = (*QUICK, "steps=1", "rollout.max_completion_tokens=8")
    train(small_config(*limits), tmp_path / "plain", quiet=True)
    train(small_config(*limits, "rollout.overlong_buffer=4"), tmp_path / "soft", quiet=True)
    plain, soft = read_metrics(tmp_path / "plain")[0], read_metrics(tmp_path / "soft")[0]
    assert plain["truncated"] > 0.2
    assert soft["reward"] <= plain["reward"] - plain["truncated"]
    train(small_config(*limits, "algorithm.mask_truncated=true"), tmp_path / "mask", quiet=True)
    assert digest(tmp_path / "mask/model") != digest(tmp_path / "plain/model")


def test_an_adaptive_entropy_bonus_changes_its_weight(
    plain: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bonus = ("algorithm.entropy_target=5.0", "algorithm.entropy_delta=0.001")
    config = small_config(*QUICK, *bonus)
    with load_parts(config) as parts:
        assert start_state(parts, None).entropy_weight == 0.0
    train(config, tmp_path / "bonus", quiet=True)
    assert digest(tmp_path / "bonus/model") != digest(plain / "model")


def test_gradient_checkpointing_gives_the_same_weights(
    plain: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    train(small_config(*QUICK, "gradient_checkpointing=true"), tmp_path / "less", quiet=True)
    for name, expected in weights(plain / "model").items():
        found = weights(tmp_path / "less/model")[name]
        assert torch.allclose(found, expected, atol=1e-6), name


@pytest.mark.parametrize(
    "preset",
    [
        "dapo",
        "bnpo",
        "dr_grpo",
        "gspo",
        "luspo",
        "cispo",
        "sapo",
        "vespo",
        "gmpo",
        "rloo",
        "reinforce",
    ],
)
def test_every_preset_trains(preset: str, tmp_path: pathlib.Path) -> None:
    config = small_config(*QUICK, "steps=1", f"algorithm={preset}", "batch.epochs=2")
    train(config, tmp_path / "run", quiet=True)
    (line,) = read_metrics(tmp_path / "run")
    assert math.isfinite(line["loss"]) and line["grad_norm"] > 0
