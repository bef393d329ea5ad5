"""One run folder that is damaged or hostile must not hide the others, nor keep anybody waiting."""

import gzip
import os
import pathlib
import resource
import time
from collections.abc import Callable

import pytest

from viewer_runs import TestClient, api, client, make_run

Damage = Callable[[pathlib.Path], object]


def config(text: str) -> Damage:
    return lambda run: (run / "config.yaml").write_text(text)


def replaced(name: str, by: Callable[[pathlib.Path], object]) -> Damage:
    def damage(run: pathlib.Path) -> None:
        (run / name).unlink(missing_ok=True)
        by(run / name)

    return damage


def to_itself(path: pathlib.Path) -> None:
    path.symlink_to(path.name)


TOLD: dict[str, Damage] = {
    "not a number": config("seed: .nan\nsteps: 3\n"),
    "infinity": config("steps: .inf\n"),
    "a date": config("seed: 2026-01-01\n"),
    "a set": config("seed: !!set {a, b}\n"),
    "binary data": config("seed: !!binary aGk=\n"),
    "a value that contains itself": config("seed: &a [*a]\n"),
    "a deep nest": config("[" * 5000),
    "no YAML": config("a: [b\n"),
    "config.yaml links to itself": replaced("config.yaml", to_itself),
    "config.yaml is a folder": replaced("config.yaml", lambda path: path.mkdir()),
    "config.yaml is a pipe": replaced("config.yaml", os.mkfifo),
    "metrics.jsonl links to itself": replaced("metrics.jsonl", to_itself),
    "metrics.jsonl is a folder": replaced("metrics.jsonl", lambda path: path.mkdir()),
    "metrics.jsonl is a pipe": replaced("metrics.jsonl", os.mkfifo),
}
QUIET: dict[str, Damage] = {
    "summary of NaN": lambda run: (run / "summary.json").write_text(
        '{"status": NaN, "before": {"accuracy": NaN, "x": Infinity}, "after": [1]}'
    ),
    "summary.json is a pipe": replaced("summary.json", os.mkfifo),
    "summary.json is a folder": replaced("summary.json", lambda path: path.mkdir()),
    "steps without a number": lambda run: (run / "metrics.jsonl").write_text(
        '{"step": NaN}\n{"step": true}\n{"step": 1e999}\n{"step": 1' + "0" * 400 + "}\n"
    ),
    "settings of odd kinds": config("seed: [1, {a: b}]\nsteps: many\nmodel: {a: 1}\n"),
    "eval is a pipe": replaced("eval", os.mkfifo),
    "rollouts link to themselves": lambda run: (
        (run / "rollouts").rename(run / "old") and to_itself(run / "rollouts")
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "good")
    for name, damage in (TOLD | QUIET).items():
        damage(make_run(folder / name, steps=1))
    return folder


@pytest.fixture(scope="module")
def browser(folder: pathlib.Path) -> TestClient:
    return client(folder)


def test_every_run_has_its_line_and_bad_ones_say_why(browser: TestClient) -> None:
    reply = browser.get("/api/runs")
    assert reply.status_code == 200
    lines = {line["name"]: line for line in reply.json()["runs"]}
    assert lines.keys() == {"good", *TOLD, *QUIET}
    assert lines["good"]["problem"] is None and lines["good"]["last_step"] == 3
    for name in TOLD:
        assert lines[name]["problem"], name
    assert all(type(line["last_step"]) is int for line in lines.values())


@pytest.mark.parametrize("name", [*TOLD, *QUIET])
def test_every_page_of_a_bad_run_answers(
    browser: TestClient, folder: pathlib.Path, name: str
) -> None:
    address = api(folder / name)
    pages = ("metrics", "summary", "findings", "held_out", "histograms", "problems", "steps")
    began = time.monotonic()
    for page in (*pages, "steps/1/groups", "steps/1/groups/0/tokens", "search?q=x"):
        assert browser.get(f"{address}/{page}").status_code in (200, 404), page
    id = address.rpartition("/")[2]
    assert browser.get("/api/compare", params={"run": id}).status_code == 404
    assert browser.get("/api/settings", params={"run": id}).status_code == 200
    assert time.monotonic() - began < 20


def test_a_run_that_breaks_what_nobody_thought_of_hides_no_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")

    def broken(path: pathlib.Path) -> object:
        if path.parent.name == "a":
            raise MemoryError
        return position(path)

    from groupwise.view.open_run import position

    monkeypatch.setattr("groupwise.view.open_run.position", broken)
    lines = client(tmp_path).get("/api/runs").json()["runs"]
    assert "MemoryError" in lines[0]["problem"] and lines[1]["last_step"] == 3


@pytest.mark.parametrize("unit", [b"[],", b"{}\n"])
def test_a_small_file_that_unpacks_to_gigabytes_costs_little(
    tmp_path: pathlib.Path, unit: bytes
) -> None:
    run = make_run(tmp_path / "run", steps=1)
    packed = gzip.compress(b'{"completions":[' + unit * (45_000_000 // len(unit)), 1)
    (run / "rollouts" / "step-000001.jsonl.gz").write_bytes(packed)
    browser = client(run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for page in ("steps/1/groups?first=9999999", "search?q=zzz", "histograms", "problems"):
        reply = browser.get(f"{api(run)}/{page}")
        assert reply.status_code in (200, 404)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 600, f"{grown:.0f} MB"
