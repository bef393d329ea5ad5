"""A signal that arrives while Python still imports what a command needs."""

import subprocess
import sys

import pytest

from groupwise.cli import main as cli

# Not ignored, as it is by what a shell runs in the background: these tests too.
RAISED_BY_AN_IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Strikes:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.{number})

sys.meta_path.insert(0, Strikes())
sys.argv = ["groupwise", *{words!r}]
from groupwise.__main__ import main
main()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("module", "words"),
    [("typer", ["train"]), ("torch", ["train", "--quiet"]), ("torch", ["sample", "tiny", "3+4="])],
)
def test_a_signal_in_the_middle_of_an_import_ends_the_command_quietly(
    module: str, words: list[str], number: str
) -> None:
    code = RAISED_BY_AN_IMPORT.format(module=module, words=words, number=number)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if words[0] == "sample" and number == "SIGTERM":
        assert done.returncode == -15 and not done.stderr  # as for any program that saves nothing
    else:
        assert (done.returncode, done.stderr) == (3, f"stopped by {number}\n")


def test_a_signal_that_a_launcher_held_back_ends_the_command_quietly() -> None:
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
signal.raise_signal(signal.SIGINT)
from groupwise.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "stopped by SIGINT\n")


def test_next_to_nothing_is_imported_before_signals_are_handled() -> None:
    code = "import sys, groupwise.__main__; print(len(sys.modules), 'typing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    count, typing = done.stdout.split()
    assert int(count) < 80 and typing == "False"


def test_too_little_memory_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def takes_too_much(**_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(cli, "app", takes_too_much)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "has too little memory" in capsys.readouterr().err
