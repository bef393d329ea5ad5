"""The memory benchmark runs real steps: here on a shape that a CPU trains in a second."""

import importlib.util
import json
import pathlib
import sys

import pytest

from groupwise.check.plan import shape_of

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_planned_and_measured_stand_side_by_side(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmark_memory", BENCHMARKS / "memory.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_memory", module)  # its dataclasses look for it
    spec.loader.exec_module(module)
    out = tmp_path / "memory.json"
    module.main(["--device", "cpu", "--cases", "tiny,tiny-lora,tiny-nf4", "--out", str(out)])
    lines = json.loads(out.read_text())["cases"]
    assert [line["case"] for line in lines] == ["tiny", "tiny-lora", "tiny-nf4"]
    for line in lines:
        found = line["measured"]
        assert "failure" not in found, found
        assert found["layout"] == "shared_prefix" and found["engine"] == "NativeEngine"
        assert 0.1 < found["update_gib"] < 2 and found["seconds"]["update"] > 0
    whole, lora, four = (line["measured"] for line in lines)
    shape = shape_of("shape:tiny")
    assert whole["trainable"] == shape.parameters
    assert lora["trainable"] == four["trainable"] == shape.adapter(16) == 24_064
    assert four["weights_gib"] < lora["weights_gib"]
    assert "tiny-nf4" in capsys.readouterr().out
