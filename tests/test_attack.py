"""The campaign's small form. Kills and servers are left to `make attack` and to tests of their own:
where a signal strikes depends on how fast a machine is."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
KINDS = "recipes,overrides,data,runs,models,templates,bodies,disk,rewards,environments"


@pytest.mark.slow
def test_a_small_campaign_meets_the_bar(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "attack", "--small", "--seed", "1", "--minutes", "1"]
    command += ["--kinds", KINDS, "--failures", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "no traceback, hang, orphan" in done.stdout
