"""The pipeline from Python: a config in, a trained model out, whatever was imported before."""

import pathlib
import subprocess
import sys

import pytest

import groupwise
from groupwise.errors import ConfigError
from groupwise.train.api import default_folder
from groupwise.train.loop import run_loop
from runs import small_config


def test_train_can_be_called_again_and_again_whatever_was_imported_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Here the modules came first. Without the attribute it is as if nothing had been imported.
    impossible = small_config("batch.minibatches=9")
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"batch\.minibatches"):
                groupwise.train(impossible, out="never")
        assert sys.modules["groupwise.train"].loop.run_loop is run_loop
        monkeypatch.delitem(vars(groupwise), "train", raising=False)


def test_naming_train_costs_no_torch_and_the_package_is_still_one() -> None:
    code = (
        "import sys, groupwise; first = groupwise.train; assert callable(first);"
        "assert 'torch' not in sys.modules; import groupwise.train.state;"
        "assert groupwise.train is first and first.state.TrainState"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_out_every_config_has_a_folder_of_its_own_and_the_same_one_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_config("steps=1", "eval.k=1")
    result = groupwise.train(config, quiet=True)
    assert result.folder == default_folder(config) and result.folder.parent.name == "runs"
    assert (result.model / "model.safetensors").is_file()
    again = groupwise.train(config, quiet=True)
    assert again.summary == result.summary
    assert default_folder(small_config("steps=1", "eval.k=1", "seed=1")) != result.folder
