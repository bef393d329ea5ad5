"""A model folder that brings Python code along: the code is not run, whoever answers yes."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import torch

from groupwise.errors import ModelError
from groupwise.load import load_parts
from groupwise.policy.load import load_policy
from groupwise.policy.resolve import TINY
from groupwise.reward_models.model import load_reward_model, new_reward_model
from runs import exit_code, small_config

CODE = """
import pathlib
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

pathlib.Path({ran!r}).touch()

class OwnConfig(LlamaConfig):
    model_type = "own_architecture"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

class OwnTokenizer: ...
"""
AUTO_MAP = {
    "AutoConfig": "own_code.OwnConfig",
    "AutoModel": "own_code.OwnModel",
    "AutoModelForCausalLM": "own_code.OwnModel",
    "AutoModelForSequenceClassification": "own_code.OwnModel",
    "AutoTokenizer": ["own_code.OwnTokenizer", None],
}


def edit(file: pathlib.Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def ran(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "ran"


@pytest.fixture
def needs_code(tmp_path: pathlib.Path, ran: pathlib.Path) -> pathlib.Path:
    """The embedded model as an architecture of its own."""
    folder = shutil.copytree(TINY, tmp_path / "needs_code")
    (folder / "own_code.py").write_text(CODE.format(ran=str(ran)))
    edit(folder / "config.json", model_type="own_architecture", auto_map=AUTO_MAP)
    own = {"AutoTokenizer": AUTO_MAP["AutoTokenizer"]}
    edit(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=own)
    return folder


def test_a_model_that_needs_its_own_code_is_refused(
    needs_code: pathlib.Path, ran: pathlib.Path
) -> None:
    for load in (
        lambda: load_policy(str(needs_code), torch.device("cpu"), torch.float32),
        lambda: load_reward_model(str(needs_code), "cpu"),
        lambda: new_reward_model(
            "scalar", str(needs_code), tokenizer="tiny", max_tokens=None, seed=0
        ),
        lambda: new_reward_model("cot", str(needs_code), tokenizer="tiny", max_tokens=None, seed=0),
    ):
        with pytest.raises(ModelError, match="needs Python code of its own"):
            load()
    assert not ran.exists()


def test_code_beside_a_model_that_does_not_need_it_is_left_alone(
    needs_code: pathlib.Path, ran: pathlib.Path
) -> None:
    edit(needs_code / "config.json", model_type="llama")
    known = json.loads((TINY / "tokenizer_config.json").read_text())["tokenizer_class"]
    edit(needs_code / "tokenizer_config.json", tokenizer_class=known)
    policy = load_policy(str(needs_code), torch.device("cpu"), torch.float32)
    assert type(policy.model).__module__.startswith("transformers.")
    assert not ran.exists()


@pytest.mark.parametrize("command", ["eval", "sample", "export"])
def test_nothing_is_asked_on_standard_input(
    command: str,
    needs_code: pathlib.Path,
    ran: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [command, str(needs_code)]
    if command == "export":
        (tmp_path / "config.yaml").write_text(f"model: {needs_code}\n")
        words = ["export", str(tmp_path), "--to", "trl", "--out", str(tmp_path / "train.py")]
    code = exit_code(words, monkeypatch, typed="yes\n" * 100)
    output, errors = capfd.readouterr()
    assert not ran.exists()
    assert code == 2, errors
    assert "needs Python code of its own" in errors
    assert "Traceback" not in errors and "[y/N]" not in output + errors


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b'{"version": "1.0", "added_tokens": 7}'),
        ("model.safetensors", b"\xff" * 64),
        ("config.json", b'{"model_type": "llama", "hidden_size": "x"}'),
        ("config.json", b'{"model_type": "llama", "num_attention_heads": 0}'),
    ],
)
def test_a_damaged_folder_is_one_error(name: str, content: bytes, tmp_path: pathlib.Path) -> None:
    folder = shutil.copytree(TINY, tmp_path / "model")
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError):
        load_policy(str(folder), torch.device("cpu"), torch.float32)


def test_a_tokenizer_that_loads_and_does_not_work_is_one_error(tmp_path: pathlib.Path) -> None:
    folder = shutil.copytree(TINY, tmp_path / "model")
    edit(folder / "tokenizer_config.json", model_max_length=[512])
    with pytest.raises(ModelError, match="cannot be loaded: TypeError"):
        load_policy(str(folder), torch.device("cpu"), torch.float32)


def test_a_tokenizer_of_another_model_is_one_error(tmp_path: pathlib.Path) -> None:
    folder = shutil.copytree(TINY, tmp_path / "model")
    edit(folder / "tokenizer_config.json", eos_token="<|another|>")
    with pytest.raises(ModelError, match="do not belong together"):
        load_parts(small_config(f"model={folder}"))
