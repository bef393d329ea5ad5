import io
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from groupwise.tracking import console as console_module
from groupwise.tracking.activity import doing
from groupwise.tracking.base import Trackers
from groupwise.tracking.console import LiveConsole, printable, sparkline
from groupwise.tracking.run import differences, read_metrics
from groupwise.training.api import train
from runs import small_config


class Recorder:
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


class Broken(Recorder):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("server gone")


def test_a_tracker_that_fails_warns_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = Recorder(), Broken()
    trackers = Trackers({"good": lambda: good, "bad": lambda: bad})
    for step in (1, 2, 3):
        trackers.log(step, {"reward": 1.0})
    trackers.close()
    assert [step for step, _ in good.lines] == [1, 2, 3] and good.closed
    assert caplog.text.count("tracker bad failed") == 1 and "server gone" in caplog.text


def test_a_tracker_that_cannot_start_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Recorder:
        raise OSError("no disk")

    Trackers({"bad": refuse}).log(1, {})
    assert "tracker bad failed" in caplog.text


def test_a_missing_service_says_how_to_install_it_and_training_goes_on(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    config = small_config("steps=1", "tracking.trackio=true")
    assert train(config, tmp_path / "run", quiet=True).summary["status"] == "finished"
    assert "pip install 'groupwise[trackio]'" in caplog.text


def test_services_get_every_step_under_the_runs_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, object]] = []
    fake = types.ModuleType("wandb")
    fake.init = lambda **settings: calls.append(("init", settings["name"]))  # type: ignore
    fake.log = lambda metrics, step: calls.append(("log", step))  # type: ignore
    fake.finish = lambda: calls.append(("finish", None))  # type: ignore
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(small_config("steps=2", "tracking.wandb=true"), tmp_path / "mine", quiet=True)
    assert calls == [("init", "mine"), ("log", 1), ("log", 2), ("finish", None)]


def test_tensorboard_holds_every_step(tmp_path: pathlib.Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(small_config("steps=2", "tracking.tensorboard=true"), tmp_path / "run", quiet=True)
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    rewards = [line["reward"] for line in read_metrics(tmp_path / "run")]
    assert [e.step for e in events.Scalars("reward")] == [1, 2]
    assert [e.value for e in events.Scalars("reward")] == pytest.approx(rewards)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_console_shows_what_matters(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    shown = Console(file=out, force_terminal=terminal, width=120)
    monkeypatch.setattr(console_module, "console", shown)
    live = LiveConsole(total=3, done=0)
    metrics = {"reward": 0.5, "accuracy": 0.25, "tokens_per_second": 1234.0}
    for step in (1, 2, 3):
        live.log(step, metrics | {"reward": step / 4})
    live.close()
    for text in ("3/3", "0.750", "25.0%", "1,234"):
        assert text in out.getvalue()
    assert ("▁" in out.getvalue()) == terminal


def test_a_line_in_a_log_fits_80_columns_and_says_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(console_module, "console", Console(file=out, width=300))
    live = LiveConsole(total=1000, done=0)
    live.began -= 90.0
    names = [key for key, _, _ in console_module._SHOWN]
    live.log(1, dict.fromkeys(names, 0.123))
    (line,) = out.getvalue().splitlines()
    assert len(line) <= 80 and "h" in line and " left" in line and "accuracy 12.3%" in line
    assert console_module.duration(45) == "45 s" and console_module.duration(12000) == "3 h 20 min"


def test_sparkline_scales_and_averages() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert len(sparkline([float(i) for i in range(1000)], 60)) <= 60


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b[31mred", "\\x1b\\[2J\\x1b\\[31mred"),
        ("[bold]x[/bold]", "\\[bold]x\\[/bold]"),
        ("a\u202eb\u200fc", "a\\u202eb\\u200fc"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_model_output_cannot_control_the_terminal(hostile: str, shown: str) -> None:
    assert printable(hostile).replace("\\[", "[") == shown.replace("\\[", "[")
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=200).print(printable(hostile), highlight=False)
    assert "\x1b[2J" not in out.getvalue() and "\u202e" not in out.getvalue()


def test_what_may_change_between_two_starts_of_a_run() -> None:
    old = small_config()
    assert differences(old, small_config("steps=9", "checkpoint.every=1")) == []
    cosine = small_config("optimizer.schedule=cosine")
    assert differences(cosine, small_config("optimizer.schedule=cosine", "steps=9")) == [
        "steps was 4 and is now 9"
    ]
    assert len(differences(old, small_config("seed=1", "batch.prompts=5"))) == 2


class FakeDisplay(types.ModuleType):
    """IPython.display: what was drawn, and how often."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.drawn: list[str] = []

    def display(self, content: Any, display_id: bool) -> Any:
        assert display_id
        self.update(content)
        return self

    def update(self, content: Any) -> None:
        self.drawn.append(content._repr_mimebundle_([], [])["text/plain"])


def test_a_notebook_has_one_panel_that_is_drawn_again_but_not_for_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = FakeDisplay()
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    notebook = Console(force_jupyter=True, force_terminal=False)
    monkeypatch.setattr(console_module, "console", notebook)
    live = LiveConsole(total=100, done=0)
    for step in range(1, 101):
        live.log(step, {"reward": step / 100, "accuracy": 0.25})
        doing("sampling", step, 100)
    live.close()
    assert len(shown.drawn) < 10
    assert "step 0/100" in shown.drawn[0]
    assert "step 100/100" in shown.drawn[-1] and "reward 1.000" in shown.drawn[-1]
    assert "sampling" not in shown.drawn[-1]
