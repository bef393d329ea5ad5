"""The pipeline from Python: a config in, a trained model out, whatever was imported before."""

import pathlib
import subprocess
import sys

import pytest

import groupwise
from groupwise.training.api import default_folder
from groupwise.training.arguments import TrainArguments
from runs import small_config


@pytest.mark.slow
def test_train_is_a_function_whatever_was_imported_first() -> None:
    code = (
        "import inspect, sys, groupwise; assert 'torch' not in sys.modules;"
        "import groupwise.training.state; assert inspect.isfunction(groupwise.train);"
        "assert 'rewards' in inspect.signature(groupwise.train).parameters"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_out_every_config_has_a_folder_of_its_own_and_the_same_one_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_config("steps=1", "eval.k=1")
    result = groupwise.train(config, quiet=True)
    assert (
        result.folder == default_folder(TrainArguments(config))
        and result.folder.parent.name == "runs"
    )
    assert (result.model_folder / "model.safetensors").is_file()
    again = groupwise.train(config, quiet=True)
    assert again.summary == result.summary
    assert (
        default_folder(TrainArguments(small_config("steps=1", "eval.k=1", "seed=1")))
        != result.folder
    )
