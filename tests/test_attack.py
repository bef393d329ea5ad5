"""The campaign's small form: every kind of case, and its own machinery."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow
def test_a_small_campaign_meets_the_bar(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "attack", "--small", "--seed", "1", "--minutes", "1.2"]
    done = subprocess.run(
        [*command, "--failures", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "no traceback, hang, orphan" in done.stdout
