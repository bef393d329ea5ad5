"""log.txt: warnings of libraries off the screen and in the file, why a run ended, no secrets."""

import io
import logging
import pathlib
import warnings
from collections.abc import Iterator

import pytest

from groupwise.errors import Interrupted
from groupwise.tracking import log_file
from groupwise.tracking.log_file import libraries_off_screen, logging_to


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """A root logger of our own, as the command line sets one up."""
    root, before, level = logging.getLogger(), logging.getLogger().handlers[:], logging.root.level
    shown = io.StringIO()
    logging.captureWarnings(False)  # a command in an earlier test may have left it on
    root.handlers, root.level = [logging.StreamHandler(shown)], logging.WARNING
    yield shown
    root.handlers, root.level = before, level
    logging.captureWarnings(False)


def test_the_screen_has_what_is_for_people_and_the_file_has_all(
    tmp_path: pathlib.Path, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "0123456789abcdef")
    libraries_off_screen()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("early and deprecated", stacklevel=1)
    with logging_to(tmp_path):
        logging.getLogger("somelib.part").warning("noise with 0123456789abcdef")
        logging.getLogger("somelib.part").error("broken")
        logging.getLogger("groupwise").warning("step 3: entropy collapse")
    logging.getLogger("somelib").error("after the run")
    assert screen.getvalue().splitlines() == ["broken", "step 3: entropy collapse", "after the run"]
    text = (tmp_path / "log.txt").read_text()
    for part in ("early and deprecated", "noise with ***", "broken", "entropy collapse"):
        assert part in text
    assert "after the run" not in text


def test_the_file_says_why_a_run_ended(tmp_path: pathlib.Path, screen: io.StringIO) -> None:
    with pytest.raises(ZeroDivisionError), logging_to(tmp_path):
        _ = 1 / 0
    with pytest.raises(Interrupted), logging_to(tmp_path):
        raise Interrupted("stopped by SIGINT at 5 %")
    error, stop = (tmp_path / "log.txt").read_text().split("ZeroDivisionError: ")
    assert "Traceback" in error and "stopped by SIGINT at 5 %" in stop and "Traceback" not in stop
    assert not screen.getvalue()


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: pathlib.Path) -> None:
    with logging_to(tmp_path / "missing"):
        logging.getLogger("groupwise").warning("said all the same")


def test_the_file_does_not_grow_for_ever(
    tmp_path: pathlib.Path, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "MOST_BYTES", 1000)
    with logging_to(tmp_path):
        for number in range(100):
            logging.getLogger("somelib").warning("warning %s of many", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "log.txt.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "warning 99 of many" in (tmp_path / "log.txt").read_text()
