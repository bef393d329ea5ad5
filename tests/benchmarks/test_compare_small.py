"""The benchmark script, on a model so small that only its form can be checked, not its speed."""

import json
import pathlib
import subprocess
import sys
from dataclasses import asdict

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import compare  # noqa: E402
from groupwise.check.peak import Peak  # noqa: E402
from sidebyside.children import measured  # noqa: E402
from sidebyside.floor import floor_seconds  # noqa: E402
from sidebyside.settings import (  # noqa: E402
    Failure,
    Measurement,
    Setting,
    Size,
    measurement_from,
)
from sidebyside.table import step_ratio, tables  # noqa: E402

SETTING = Setting("cpu", "shape:tiny", 2, 4, 6, 8, steps=1)


def measurement(kind: str, setting: Setting, step: float) -> Measurement:
    seconds = {"generation": step / 4, "reference": 0.0, "update": step / 2, "step": step}
    return Measurement(kind, setting, seconds, (seconds,), 64, 8, 2**30, {"first": 2 * step})


@pytest.mark.slow
def test_both_sides_do_the_same_work_and_the_results_say_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--model", "shape:tiny", "--quick"]
    command += ["--prompts", "2", "--group", "4", "--prompt-tokens", "6"]
    command += ["--completion-tokens", "8", "--steps", "1", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert data["peak"]["flops"] > 1e8 and data["peak"]["bytes"] > 1e8
    assert data["versions"]["trl"] == "1.16.0" and data["machine"]["cores"] >= 1
    assert data["command"].startswith("python benchmarks/compare.py --model shape:tiny")
    ours, theirs = (measurement_from(line) for line in data["results"])
    assert isinstance(ours, Measurement) and isinstance(theirs, Measurement)
    assert (ours.kind, theirs.kind) == ("groupwise", "trl")
    assert ours.setting == theirs.setting == SETTING
    assert ours.tokens == theirs.tokens == 2 * 4 * 8 and ours.longest == theirs.longest == 8
    assert ours.notes["engine"] == "NativeEngine" and theirs.notes["micro_batch"] == 8
    for result in (ours, theirs):
        parts = sum(result.seconds[name] for name in ("generation", "reference", "update"))
        assert 0 < parts <= result.seconds["step"] * 1.001
        assert result.notes["first"] > 0 and result.peak_bytes > 2**26
    *_, last = done.stdout.strip().splitlines()
    ratio = theirs.seconds["step"] / ours.seconds["step"]
    assert last == f"step ratio: {ratio:.2f}"
    assert "groupwise / floor" in done.stdout


def test_only_what_is_to_be_recorded_goes_where_the_records_are() -> None:
    plain, kept = (compare.arguments(words) for words in ([], ["--record"]))
    assert compare.target(plain) == BENCHMARKS / "measured" / "compare-cpu-smollm2.json"
    assert compare.target(kept) == BENCHMARKS / "results" / "compare-cpu-smollm2.json"
    command = ["git", "check-ignore", "--quiet", str(compare.target(plain))]
    ignored = subprocess.run(command, cwd=BENCHMARKS)
    assert ignored.returncode == 0


def test_a_child_that_takes_too_long_costs_only_its_own_results() -> None:
    (line,) = measured("groupwise", [SETTING], timeout=0.5)
    failure = measurement_from(line)
    assert isinstance(failure, Failure) and failure.why.startswith("stopped after 0 s")
    assert failure.setting == SETTING


def test_the_ratio_is_the_fastest_trl_over_groupwise_at_the_first_setting() -> None:
    other = Setting("cpu", "shape:tiny", 2, 4, 6, 8, beta=0.1)
    results = [
        measurement("groupwise", SETTING, 2.0),
        measurement("trl", SETTING, 7.0),
        measurement("trl+liger", SETTING, 5.0),
        Failure("trl+vllm", SETTING, "vllm is not installed"),
        measurement("groupwise", other, 1.0),
        measurement("trl", other, 9.0),
    ]
    assert step_ratio(results) == 2.5
    assert step_ratio(results[1:4]) is None
    text = tables(results, None, None)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert lines["trl+vllm"][1:] == ["vllm", "is", "not", "installed"]
    trl = next(line.split() for line in text.splitlines() if line.startswith("trl "))
    assert trl == ["trl", "1.75", "-", "3.5", "7", "14", "9.14", "1", "3.5", "3.5"]


def test_the_floor_counts_prompts_once_and_the_head_only_where_tokens_are_sampled() -> None:
    size = Size(body=100, head=1000, parameters=1100, layers=1, attention=0, kv=0, bytes=4)
    setting = Setting(
        "cpu", "shape:tiny", prompts=2, group=4, prompt_tokens=10, completion_tokens=5
    )
    # 2 x 10 prompt tokens and 40 sampled ones: 2 * 100 * 60 + 2 * 1000 * 40 operations.
    fast_memory = floor_seconds(setting, size, Peak(flops=92_000.0, bytes=1e18), 40, 5)
    assert fast_memory["generation"] == pytest.approx(1.0)
    assert fast_memory["update"] == pytest.approx(3.0)
    assert fast_memory["reference"] == 0 and fast_memory["step"] == pytest.approx(4.0)
    # 5 times 1100 weights of 4 bytes to sample; 7 numbers of 4 bytes each for AdamW.
    fast_cores = floor_seconds(setting, size, Peak(flops=1e18, bytes=22_000.0), 40, 5)
    assert fast_cores["generation"] == pytest.approx(1.0)
    assert fast_cores["update"] == pytest.approx(1.4)


def test_a_sweep_changes_one_number_at_a_time() -> None:
    base = asdict(SETTING)
    for point in compare.sweep(SETTING):
        changed = [name for name, value in asdict(point).items() if value != base[name]]
        assert len(changed) <= 1
    assert len(compare.sweep(SETTING)) == 11


@pytest.mark.parametrize(("device", "processes"), [("cuda", 2), ("cpu", 6)])
def test_a_gpu_kind_starts_once_and_a_cpu_kind_once_for_each_setting(
    device: str, processes: int
) -> None:
    options = compare.arguments(
        ["--device", device, "--lengths", "both", "--only", "groupwise,trl"]
    )
    jobs = compare.plan(options)
    assert len(jobs) == processes
    assert sum(len(settings) for _, settings in jobs) == 6
    assert {setting.beta for _, settings in jobs for setting in settings} == {0, 0.04}
