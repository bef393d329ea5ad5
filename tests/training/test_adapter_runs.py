"""Whole runs with an adapter: what is saved, how it resumes, where it loads."""

import json
import pathlib

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.describe import describe
from groupwise.errors import ConfigError
from groupwise.load import load_config_policy, load_parts
from groupwise.recipe import parse, read_yaml
from groupwise.tracking.run import read_metrics
from groupwise.training.api import start_state, train
from groupwise.training.checkpoint import newest_checkpoint
from runs import fingerprint, small_config

LORA = ("adapter=lora", "adapter.rank=4", "optimizer.lr=5e-3")
TOKENS = torch.tensor([[5, 9, 13, 21, 34]])


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@torch.no_grad()
def logits(model: object) -> torch.Tensor:
    return model(input_ids=TOKENS).logits  # pyright: ignore


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("adapter") / "run"
    train(small_config(*LORA, "algorithm.kl_weight=0.01", "eval.every=2"), folder, quiet=True)
    return folder


def test_only_the_adapter_is_trained_and_saved(finished: pathlib.Path) -> None:
    saved = finished / "checkpoints" / "step-000004"
    for folder in (finished / "model", finished / "best", saved / "model"):
        names = {path.name for path in folder.iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
        assert "model.safetensors" not in names
    moments = load_file(saved / "optimizer.safetensors")
    assert moments and all("lora_" in name for name in moments)
    config = json.loads((finished / "model" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 32, "LORA")
    card = (finished / "model" / "README.md").read_text()
    assert "library_name: peft" in card and "AutoPeftModelForCausalLM" in card
    assert not (saved / "reference.safetensors").exists()


def test_kl_against_the_switched_off_adapter_starts_at_zero_and_grows(
    finished: pathlib.Path,
) -> None:
    lines = read_metrics(finished)
    assert lines[0]["kl"] == 0 and lines[-1]["kl"] > 1e-6
    assert all(line["sampler_gap"] < 1e-4 for line in lines)


def test_the_adapter_loads_with_peft_and_with_groupwise_as_the_same_model(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = parse(read_yaml(finished / "config.yaml"), [f"model={finished}"])
    policy = load_config_policy(config)
    theirs = AutoPeftModelForCausalLM.from_pretrained(finished / "model")
    assert torch.equal(logits(policy.model), logits(theirs))
    base = AutoModelForCausalLM.from_pretrained(
        json.loads((finished / "model" / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
    )
    assert (logits(base) - logits(theirs)).abs().max() > 1e-3
    for where in (finished, finished / "best"):
        invoke("eval", str(where), "--limit", "4", "--k", "1", "--json", str(tmp_path / "m.json"))
        metrics = json.loads((tmp_path / "m.json").read_text())
        assert metrics["problems"] == 4
    plain = load_config_policy(small_config(f"model={finished / 'model'}"))  # no adapter block
    assert plain.adapter is None
    assert torch.allclose(logits(plain.model), logits(theirs), atol=1e-4)


def test_export_merges_the_adapter_into_whole_weights(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = invoke("export", str(finished), "--merge", "--out", str(tmp_path / "merged"))
    assert "merged" in output
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    tuned = AutoPeftModelForCausalLM.from_pretrained(finished / "model")
    assert torch.allclose(logits(merged), logits(tuned), atol=1e-4)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "library_name: transformers" in card
    invoke("export", str(finished), "--out", str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    result = CliRunner().invoke(app, ["export", str(finished), "--out", str(tmp_path / "merged")])
    assert "is not empty" in str(result.exception)


def test_stopped_and_resumed_equals_never_stopped(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options = (*LORA, "algorithm.kl_weight=0.01", "eval.every=2")
    train(small_config(*options, "steps=2"), tmp_path / "parts", quiet=True)
    train(small_config(*options), tmp_path / "parts", quiet=True)
    assert fingerprint(tmp_path / "parts") == fingerprint(finished)


@pytest.mark.slow
def test_offloading_changes_where_things_are_and_nothing_else(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    offloaded = ("optimizer.offload=true", "gradient_checkpointing=offload")
    options = (*LORA, "algorithm.kl_weight=0.01", "eval.every=2", *offloaded)
    train(small_config(*options), tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(finished)
    masters = load_file(tmp_path / "run" / "checkpoints/step-000004/optimizer.safetensors")
    assert any(name.startswith("master.") for name in masters)


STATES = {
    "moving reference": (
        "algorithm.kl_weight=0.01",
        "reference.kind=mixed",
        "reference.every=1",
        "adapter.dropout=0.1",
        "batch.epochs=2",
    ),
    "bf16": ("precision=bf16", "adapter.dora=true", "algorithm.kl_weight=0.01"),
}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_whatever_a_run_carries_resumes_exactly(state: str, tmp_path: pathlib.Path) -> None:
    config = small_config(*LORA, *STATES[state])
    train(config, tmp_path / "whole", quiet=True)
    train(small_config(*LORA, *STATES[state], "steps=2"), tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    kept = tmp_path / "parts" / "checkpoints" / "step-000004" / "reference.safetensors"
    assert kept.exists() == (state == "moving reference")


def test_an_adapter_can_be_trained_on_with_its_start_as_the_reference(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options = (*LORA, f"model={finished}", "algorithm.kl_weight=0.01")
    train(small_config(*options, "steps=2"), tmp_path / "run", quiet=True)
    assert read_metrics(tmp_path / "run")[0]["kl"] == pytest.approx(0, abs=1e-6)
    resumed = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert resumed is not None
    config = small_config(*options)
    with load_parts(config, weights=str(resumed / "model")) as parts:
        reference = start_state(parts, resumed).reference
        assert reference is not None
        start = load_file(finished / "model" / "adapter_model.safetensors")
        for name, weight in reference.state().items():
            saved = start[f"base_model.model.{name.replace('.default', '')}"]
            assert torch.equal(weight, saved)
    with pytest.raises(ConfigError, match=r"rank=4, not 16"):
        load_config_policy(small_config("adapter=lora", f"model={finished}"))


def test_the_trainable_share_and_memory_are_told() -> None:
    config = small_config(*LORA)
    policy = load_config_policy(config)
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in policy.model.parameters())
    text = describe(config, policy)
    assert f"{trained / 1e6:.3g} M trainable ({100 * trained / whole:.3g} %)" in text
    assert f"weights {4 * whole / 1e6:.3g} MB" in text
    assert f"optimizer {12 * trained / 1e6:.3g} MB" in text
    eight = config.model_copy(
        update={"optimizer": config.optimizer.model_copy(update={"kind": "adamw_8bit"})}
    )
    assert f"optimizer {6 * trained / 1e6:.3g} MB" in describe(eight, policy)


def test_adapter_is_shorthand_for_its_kind() -> None:
    assert small_config("adapter=lora") == small_config("adapter.kind=lora")
    with pytest.raises(ConfigError, match="adapter=lora"):
        small_config("quantization=nf4")
    with pytest.raises(ConfigError, match=r"did you mean 'rank'"):
        small_config("adapter=lora", "adapter.rnk=3")
