"""Every model that a recipe names goes through it: its architecture and tokenizer, in miniature."""

import importlib.util
import pathlib

import pytest
import torch
from transformers import AutoTokenizer

import groupwise.training.api as api
from groupwise.config import AdapterSettings, Config
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.policy.load import load_policy
from groupwise.policy.pretrained import from_pretrained
from groupwise.recipe import load_recipe
from groupwise.reward_models.model import Kind, new_reward_model, save_reward_model
from named_models import MODELS

needs_sentencepiece = pytest.mark.skipif(
    importlib.util.find_spec("sentencepiece") is None, reason="no sentencepiece"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    return {name: tmp_path_factory.mktemp("model") / "folder" for name in MODELS}


def made(folders: dict[str, pathlib.Path], name: str) -> str:
    if not folders[name].exists():
        MODELS[name](folders[name])
    return str(folders[name])


def trained(config: Config, folder: pathlib.Path) -> None:
    result = api.train(config, folder, quiet=True)
    assert result.summary["status"] == "finished"
    assert sum(line["updates"] for line in result.metrics) > 0


def small(name: str, *overrides: str, preset: str | None = None) -> Config:
    return load_recipe(name, ["tracking.tensorboard=false", *overrides], preset=preset, tiny=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "recipe", "preset", "targets"),
    [
        ("EleutherAI/gpt-neo-125m", "cot_deepspeed", "rules", None),
        ("microsoft/DialoGPT-small", "cookbook", "smoke", "[c_attn]"),
        ("Qwen/Qwen2.5", "cookbook", None, None),
        ("Qwen/Qwen2.5", "nano_aha_moment", None, None),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3_8b", None, None),
    ],
)
def test_a_model_goes_through_its_recipe(
    folders: dict[str, pathlib.Path],
    model: str,
    recipe: str,
    preset: str | None,
    targets: str | None,
    tmp_path: pathlib.Path,
) -> None:
    words = [f"model={made(folders, model)}", "quantization=null"]
    words += ["batch.prompts=2", "batch.group_size=4"]
    words += [f"adapter.targets={targets}"] if targets else []
    trained(small(recipe, *words, preset=preset), tmp_path / "run")


@pytest.mark.slow
@needs_sentencepiece
@pytest.mark.parametrize(
    ("base", "kind", "recipe", "options", "policy"),
    [
        ("microsoft/deberta-v3-small", "cot", "cot_reward", "{}", "EleutherAI/gpt-neo-125m"),
        ("bert-base-uncased", "preference", "preference", "{threshold: 0.1}", "Qwen/Qwen2.5"),
    ],
)
def test_a_reward_model_on_a_named_base_goes_through_its_recipe(
    folders: dict[str, pathlib.Path],
    base: str,
    kind: Kind,
    recipe: str,
    options: str,
    policy: str,
    tmp_path: pathlib.Path,
) -> None:
    reward = new_reward_model(kind, made(folders, base), tokenizer="tiny", max_tokens=256, seed=0)
    save_reward_model(reward, tmp_path / "rm")
    named = f"[{{name: 'model:{tmp_path / 'rm'}', options: {options}}}]"
    words = [f"model={made(folders, policy)}", f"rewards={named}"]
    trained(small(recipe, *words), tmp_path / "run")


@pytest.mark.slow
@needs_sentencepiece
def test_a_scalar_deberta_with_nothing_but_spm_scores_a_gpt_neo(
    folders: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    scored = made(folders, "OpenAssistant/reward-model-deberta-v3-base")
    named = f"[{{name: 'model:{scored}', options: {{output: logit}}}}]"
    words = [f"model={made(folders, 'EleutherAI/gpt-neo-125m')}", f"rewards={named}"]
    trained(small("neural_reward", *words), tmp_path / "run")


@needs_sentencepiece
def test_a_tokenizer_of_spm_alone_reads_and_writes(folders: dict[str, pathlib.Path]) -> None:
    folder = pathlib.Path(made(folders, "microsoft/deberta-v3-small"))
    assert not (folder / "tokenizer.json").exists()
    tokenizer = from_pretrained(AutoTokenizer, str(folder))
    ids = tokenizer("What is 29+13?")["input_ids"]
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["[CLS]", "[SEP]"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "What is 29+13?"


def test_without_sentencepiece_its_install_command_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spm.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>")
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sentencepiece" else found(name)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'groupwise\[sentencepiece\]'"):
        from_pretrained(AutoTokenizer, str(tmp_path))


def test_gpt2s_layers_are_found_and_named(folders: dict[str, pathlib.Path]) -> None:
    folder = made(folders, "microsoft/DialoGPT-small")

    def load(*targets: str) -> int:
        settings = AdapterSettings(targets=targets or "all-linear", rank=2)
        policy = load_policy(folder, torch.device("cpu"), torch.float32, adapter=settings)
        return sum(p.numel() for p in policy.model.parameters() if p.requires_grad)

    assert load("c_attn") == 2 * 2 * (32 + 96)
    assert load() > load("c_attn")
    with pytest.raises(ConfigError) as refused:
        load("q_proj", "v_proj")
    assert "its linear layers: c_attn, c_fc, c_proj" in str(refused.value)
    assert "Use adapter.targets=[c_attn]" in str(refused.value)
