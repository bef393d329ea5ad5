import errno
import logging
import pathlib
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.errors import RunFolderError
from groupwise.training import tensor_files
from groupwise.training.api import train
from groupwise.training.checkpoint import SavedTensors, newest_checkpoint
from runs import digest, fingerprint, small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(small_config(), folder, quiet=True)
    return folder


def unfinished_copy(finished: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    shutil.copytree(finished, target)
    (target / "summary.json").unlink()
    return target


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_passed_over_with_a_message(
    name: str,
    harm: str,
    finished: pathlib.Path,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = unfinished_copy(finished, tmp_path / "run")
    victim = run / "checkpoints" / "step-000004" / name
    if harm == "remove":
        victim.unlink()
    else:
        data = bytearray(victim.read_bytes())
        if harm == "flip":
            data[len(data) // 2] ^= 1
        victim.write_bytes(data[: len(data) // 2] if harm == "truncate" else data)
    with caplog.at_level(logging.WARNING, "groupwise"):
        newest = newest_checkpoint(run / "checkpoints")
    assert newest is not None and newest.name == "step-000002"
    assert "step-000004 is damaged" in caplog.text


def test_resuming_past_a_damaged_checkpoint_gives_the_same_run(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run = unfinished_copy(finished, tmp_path / "run")
    (run / "checkpoints" / "step-000004" / "state.json").write_text("{}")
    train(small_config(), run, quiet=True)
    assert fingerprint(run) == fingerprint(finished)


def test_a_full_disk_while_saving_keeps_the_checkpoint_before(
    finished: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = tensor_files.save_file, 0

    def full(tensors: Any, path: pathlib.Path, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(tensors, path, **options)

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(RunFolderError, match=r"No space left.*free some space"):
        train(small_config(), tmp_path / "run", quiet=True)
    monkeypatch.undo()
    folders = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert folders == ["step-000002"]
    train(small_config(), tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(finished)


def test_an_optimizer_in_several_files_is_the_one_in_a_single_file(
    finished: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unfinished_copy(finished, tmp_path / "run")
    folder = run / "checkpoints" / "step-000004"
    whole = load_file(folder / "optimizer.safetensors")
    shutil.rmtree(folder)
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 300_000)
    train(small_config(), run, quiet=True)
    assert fingerprint(run) == fingerprint(finished)
    files = sorted(path.name for path in folder.glob("optimizer*"))
    assert files[:2] == ["optimizer-part-00002.safetensors", "optimizer-part-00003.safetensors"]
    assert files[-1] == "optimizer.safetensors"
    saved = SavedTensors(folder.glob("optimizer*"))
    assert set(saved) == set(whole) and all(torch.equal(saved[n], whole[n]) for n in whole)
    assert newest_checkpoint(run / "checkpoints") == folder


def test_the_final_model_has_the_last_checkpoints_weights_and_files_of_its_own(
    finished: pathlib.Path,
) -> None:
    model, last = finished / "model", finished / "checkpoints" / "step-000004" / "model"
    assert (model / "model.safetensors").samefile(last / "model.safetensors")
    for path in last.iterdir():
        assert (model / path.name).read_bytes() == path.read_bytes()
        assert path.suffix == ".safetensors" or not (model / path.name).samefile(path)


def test_a_crash_between_the_two_renames_loses_nothing(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = unfinished_copy(finished, tmp_path / "run") / "checkpoints"
    target = root / "step-000004"
    target.rename(root / "step-000004.old")
    assert newest_checkpoint(root) == target


def test_saved_models_load_anywhere(finished: pathlib.Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    messages = [{"role": "user", "content": "What is 2+2?"}]
    tokens = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**tokens, max_new_tokens=4)
    assert out.shape[1] > tokens["input_ids"].shape[1]
    assert digest(finished / "model") == digest(finished / "checkpoints" / "step-000004" / "model")
    card = (finished / "model" / "README.md").read_text()
    assert "| accuracy |" in card and "test problems" in card and card.startswith("---\n")


def test_only_the_newest_checkpoints_are_kept(tmp_path: pathlib.Path) -> None:
    little = ("steps=3", "eval.problems=1", "eval.k=1")
    config = small_config(*little, "checkpoint.every=1", "checkpoint.keep=2")
    train(config, tmp_path / "run", quiet=True)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000002", "step-000003"]


def test_bf16_checkpoints_keep_fp32_masters(tmp_path: pathlib.Path) -> None:
    # Little of everything: a CPU without bf16 takes milliseconds for each product.
    little = ["rollout.max_completion_tokens=6", "eval.problems=2", "eval.k=1", "eval.every=0"]
    settings = ["precision=bf16", "optimizer.lr=1e-5", *little]
    config = small_config(*settings, "steps=2")
    train(small_config(*settings, "steps=1"), tmp_path / "a", quiet=True)
    train(config, tmp_path / "a", quiet=True)
    train(config, tmp_path / "b", quiet=True)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "model", dtype="auto")
    assert model.dtype == torch.bfloat16
