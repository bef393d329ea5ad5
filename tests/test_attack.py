"""The campaign's small form. Servers are left to `make attack` and to tests of their own."""

import pathlib
import subprocess
import sys

import pytest

from attack.isolated import Ended
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
