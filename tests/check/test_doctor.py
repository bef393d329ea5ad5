"""The set-up check: what is wrong is found, and the fix is named."""

import json
import pathlib
import shutil
from collections.abc import Iterable
from importlib import metadata
from types import SimpleNamespace
from urllib.error import URLError

import pytest
from typer.testing import CliRunner

from groupwise import hub
from groupwise.check import doctor
from groupwise.check.doctor import Check, needed_extras
from groupwise.cli.main import app
from groupwise.errors import DataError
from groupwise.recipe import parse


def by_name(lines: Iterable[Check]) -> dict[str, Check]:
    return {line.name: line for line in lines}


def test_a_sound_set_up_is_ready_and_a_training_step_was_made(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "doctor.json"
    result = CliRunner().invoke(app, ["doctor", "--json", str(target)])
    lines = {line["name"]: line for line in json.loads(target.read_text())}
    assert lines["a training step"]["status"] == "ok", lines["a training step"]
    assert lines["model"]["status"] == lines["data"]["status"] == lines["python"]["status"] == "ok"
    assert lines["hub"]["status"] == "note", "tests run with HF_HUB_OFFLINE"
    assert "torch" in lines["packages"]["text"] and "native" in lines["engines"]["text"]
    wrong = [line for line in lines.values() if line["status"] == "fix"]
    assert (result.exit_code, "ready to train" in result.output) == (
        (2, False) if wrong else (0, True)
    )


def test_what_the_recipe_lacks_is_named_with_its_fix_and_the_exit_code_is_2(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "training_step", lambda: Check("ok", "a training step", ""))
    target = tmp_path / "doctor.json"
    words = ["model=nobody/nothing", "task=jsonl", f"task.path={tmp_path}/none.jsonl"]
    result = CliRunner().invoke(app, ["doctor", *words, "--json", str(target)])
    assert result.exit_code == 2 and "to fix" in result.output
    lines = {line["name"]: line for line in json.loads(target.read_text())}
    assert "not cached" in lines["model"]["text"] and "model=" in lines["model"]["fix"]
    assert lines["data"]["status"] == "fix" and "none.jsonl" in lines["data"]["text"]


def test_missing_and_old_packages_are_given_their_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = ["torch>=2.11", "rich>=99", "no-such-package>=1", "gguf; extra == 'smollm2'"]
    monkeypatch.setattr(metadata, "requires", lambda name: own)
    lines = list(doctor.packages())
    fixes = {line.fix: line.text for line in lines if line.status == "fix"}
    assert fixes.keys() == {"pip install 'rich>=99'", "pip install 'no-such-package>=1'"}
    assert "not installed" in fixes["pip install 'no-such-package>=1'"]
    assert any(line.status == "ok" and "torch" in line.text for line in lines)


def test_an_extra_is_a_fix_only_where_the_recipe_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = parse({})
    wanting = parse({"optimizer": {"kind": "adamw_8bit"}, "tracking": {"wandb": True}})
    fitting = parse({"quantization": "int8", "adapter": "lora"})  # trains without, and says so
    assert needed_extras(plain) == set() and needed_extras(wanting) == {"quant"}
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    for config, status in ((plain, "note"), (wanting, "fix"), (fitting, "note")):
        line = by_name(doctor.extras(config))["extra quant"]
        assert (line.status, line.fix) == (status, "pip install 'groupwise[quant]'")


def test_no_compiler_on_cuda_is_a_fix_and_elsewhere_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (line,) = doctor.compiler(on_cuda=True)
    assert line.status == "fix" and "compile=none" in line.fix
    (line,) = doctor.compiler(on_cuda=False)
    assert line.status == "note" and "build-essential" in line.fix


def test_a_driver_that_torch_cannot_use_is_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (line,) = doctor.device()
    assert line.status == "fix" and "pip install" in line.fix


@pytest.mark.parametrize(("speed", "lines"), [(1.1, 1), (4.9, 2)])
def test_a_cpu_with_bf16_is_told(speed: float, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("groupwise.check.peak.bf16_speed", lambda: speed)
    told = list(doctor.device())
    assert len(told) == lines
    assert lines == 1 or "precision=bf16" in told[1].fix


def test_being_offline_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: object, timeout: float) -> None:
        assert timeout <= 5
        raise URLError("no route")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("groupwise.hub.urlopen", refuse)
    hub._asked.cache_clear()
    assert doctor.hub().status == "note" and "no route" in doctor.hub().text
    hub._asked.cache_clear()


def test_a_full_disk_and_little_memory_are_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    assert {line.status for line in doctor.disk()} == {"fix"}
    monkeypatch.setattr("os.sysconf", lambda name: 1000)
    assert doctor.memory().status == "fix"


def test_a_check_that_fails_is_a_line_and_not_a_traceback() -> None:
    def broken() -> list[Check]:
        raise RuntimeError("driver lost\nmore")

    def fixable() -> list[Check]:
        raise DataError("no such file\nput it there")

    (line,) = doctor._guarded("device", broken)
    assert line.status == "fix" and line.text == "failed with RuntimeError: driver lost"
    (line,) = doctor._guarded("data", fixable)
    assert (line.text, line.fix) == ("no such file", "put it there")
