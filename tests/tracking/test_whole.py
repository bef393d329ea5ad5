"""Files that are written whole, and weights that are kept once."""

import pathlib

import pytest

from groupwise.tracking.run import RunFolder
from groupwise.tracking.whole import link_equal_files, replace_folder
from runs import small_config


def test_equal_weights_are_kept_once_and_stay_when_the_other_goes(tmp_path: pathlib.Path) -> None:
    saved, model, best = (tmp_path / name for name in ("saved", "model", "best"))
    for folder, weights in ((saved, b"new"), (model, b"new"), (best, b"old")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text("{}")
    link_equal_files([saved, model, best, tmp_path / "absent"])
    names = [folder / "model.safetensors" for folder in (saved, model, best)]
    assert names[0].samefile(names[1]) and not names[0].samefile(names[2])
    assert not (saved / "config.json").samefile(model / "config.json")
    replace_folder(saved, lambda folder: None)
    assert names[1].read_bytes() == b"new" and names[2].read_bytes() == b"old"
    assert not list(tmp_path.rglob("*.new"))


def test_the_best_weights_and_those_of_their_checkpoint_are_kept_once(
    tmp_path: pathlib.Path,
) -> None:
    names = ("checkpoints/step-000020/model", "checkpoints/step-000040/model", "model", "best")
    with RunFolder(tmp_path / "run", small_config()) as run:
        for name, weights in zip(names, (b"20", b"40", b"40", b"20"), strict=True):
            (run.path / name).mkdir(parents=True)
            (run.path / name / "model.safetensors").write_bytes(weights)
        link_equal_files(run.weight_folders())
        links = [(run.path / name / "model.safetensors").stat().st_nlink for name in names]
    assert links == [2, 2, 2, 2]


def test_a_link_that_cannot_take_its_place_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("saved", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"same")
    monkeypatch.setattr("groupwise.tracking.whole.os.replace", full)
    link_equal_files([tmp_path / "saved", tmp_path / "model"])
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.safetensors"]
