from pathlib import Path

import pytest

from groupwise.errors import ModelError
from groupwise.policy import resolve
from groupwise.policy.resolve import TINY, resolve_model


def model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_tiny_is_the_folder_inside_the_package() -> None:
    assert resolve_model("tiny") == str(TINY)
    assert Path(resolve.__file__).parent / "tiny" == TINY


def test_smollm2_is_wherever_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = model(tmp_path / "smollm2")
    for name in ("model.safetensors", "tokenizer.json"):
        (kept / name).touch()
    monkeypatch.setenv("GROUPWISE_CACHE", str(tmp_path))

    assert resolve_model("smollm2") == str(kept)


def test_a_folder_is_itself_even_if_it_looks_like_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)

    assert resolve_model("org/name") == "org/name"
    assert resolve_model(str(tmp_path / "org" / "name")) == str(tmp_path / "org" / "name")


def test_a_name_of_ours_wins_over_a_folder_unless_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)

    assert resolve_model("tiny") == str(TINY)
    assert Path(resolve_model("./tiny")).resolve() == (tmp_path / "tiny").resolve()


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-0.5B-Instruct", "a/b_c.d-e"])
def test_anything_else_of_the_right_form_is_a_hub_id(name: str) -> None:
    assert resolve_model(name) == name


@pytest.mark.parametrize(
    "name",
    ["./foo", "../foo", "/abs/missing", "~/missing-model", "a/b/c", "a\\b", "", " ", "a b/c"],
)
def test_a_path_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(name)


@pytest.mark.parametrize(("typo", "meant"), [("tinny", "tiny"), ("smolm2", "smollm2")])
def test_a_typo_of_a_name_of_ours_is_recognised(typo: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"did you mean '{meant}'"):
        resolve_model(typo)


def test_a_folder_without_a_model_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"model\.gguf is a file"):
        resolve_model(str(tmp_path / "model.gguf"))


def test_a_run_folder_is_its_final_model(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelError, match=r"no final model/ yet: run its train command again"):
        resolve_model(str(tmp_path))

    best = model(tmp_path / "best")
    with pytest.raises(ModelError, match=f"or use {best}"):
        resolve_model(str(tmp_path))

    final = model(tmp_path / "model")
    assert resolve_model(str(tmp_path)) == str(final)
