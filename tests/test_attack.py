"""The campaign's small form. Servers are left to `make attack` and to tests of their own."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from attack.isolated import Ended, isolated
from attack.trials import interpreter_was_starting

ROOT = pathlib.Path(__file__).parent.parent
KINDS = "recipes,overrides,data,runs,models,templates,bodies,disk,rewards,environments"


STARTING = 'Traceback:\n  File "<frozen site>", line 616, in <module>\nKeyboardInterrupt\n'
OURS = f'  File "{ROOT}/groupwise/{{}}", line 9, in <module>\n'


@pytest.mark.parametrize(
    ("ended", "begun", "let_through"),
    [
        (Ended(1, STARTING), False, True),
        (Ended(-2, OURS.format("__main__.py") + STARTING), False, True),
        (Ended(0, STARTING), True, True),
        (Ended(1, STARTING), True, False),
        (Ended(1, STARTING, orphans=("sleep",)), False, False),
        (Ended(1, STARTING, hung=True), False, False),
        (Ended(130, OURS.format("cli/main.py") + STARTING), False, False),
        (Ended(2, "error: KeyboardInterrupt"), False, False),
        (Ended(-2, ""), False, False),
    ],
)
def test_only_what_python_says_of_its_own_start_is_let_through(
    ended: Ended, begun: bool, let_through: bool
) -> None:
    assert interpreter_was_starting(ended, begun) is let_through


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_fork_ends_the_case_and_leaves_our_folders(number: int) -> None:
    armed = [True]
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), number) if armed else None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = isolated(lambda: None, 30)
        finally:
            armed.clear()
        assert (ended.code, ended.output) == (-number, "")
        assert pathlib.Path(folder).is_dir()


@pytest.mark.parametrize(
    ("kinds", "cases"),
    [
        pytest.param(KINDS, ["--small", "--minutes", "1"], marks=pytest.mark.slow),
        # Two minutes where nothing else runs, and by the clock: every one of them is wanted.
        pytest.param("kills", ["--count", "10", "--minutes", "12"], marks=pytest.mark.slow),
        pytest.param("kills", ["--small", "--seed", "2"], marks=pytest.mark.cluster),
    ],
)
def test_a_small_campaign_meets_the_bar(
    kinds: str, cases: list[str], tmp_path: pathlib.Path
) -> None:
    command = [sys.executable, "-m", "attack", "--kinds", kinds, "--seed", "1", *cases]
    command += ["--failures", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "no traceback, hang, orphan" in done.stdout
