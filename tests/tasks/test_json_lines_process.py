"""A process that answers requests: what it does wrong is told to who waits, and it starts anew."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from groupwise.tasks import json_lines_process
from groupwise.tasks.json_lines_process import JsonLinesProcess, ProcessFailed

SCRIPT = """
import json, os, sys, time
started = str(os.getpid())
for line in sys.stdin:
    request = json.loads(line)
    do, answer = request["do"], {"id": request["id"], "result": request.get("value")}
    if do == "exit": print("last words", file=sys.stderr, flush=True); os._exit(3)
    if do == "hang": time.sleep(3600)
    if do == "raise": answer = {"id": request["id"], "error": "KeyError: 'x'"}
    if do == "which": answer["result"] = started
    print("nonsense" if do == "babble" else json.dumps(answer), flush=True)
"""


@pytest.fixture
def process() -> JsonLinesProcess:
    return JsonLinesProcess((sys.executable, "-c", SCRIPT), ("hello", {}))


def test_requests_are_answered_each_with_its_own(process: JsonLinesProcess) -> None:
    answers = [process.send("echo", value=["é", number]) for number in range(50)]
    assert [answer.result(5) for answer in answers] == [["é", number] for number in range(50)]
    with pytest.raises(ProcessFailed, match="KeyError: 'x'"):
        process.ask("raise")
    assert process.ask("echo", value=1) == 1


@pytest.mark.parametrize(("do", "why"), [("exit", "exit code 3.*last words"), ("babble", "ended")])
def test_one_that_ends_or_babbles_is_started_again(
    process: JsonLinesProcess, do: str, why: str
) -> None:
    first = process.ask("which")
    with pytest.raises(ProcessFailed, match=why):
        process.send(do).result(5)
    assert process.ask("which") != first


def test_one_that_hangs_is_ended_only_if_it_answers_nothing(
    process: JsonLinesProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines_process, "PING_SECONDS", 0.3)
    first = process.ask("which")
    process.end_if_blocked()
    time.sleep(0.6)
    assert process.ask("which") == first
    hanging, behind = process.send("hang"), process.send("echo", value=1)
    process.end_if_blocked()
    for waiting in (hanging, behind):
        with pytest.raises(ProcessFailed, match="its process ended"):
            waiting.result(5)
    assert process.ask("which") != first


def test_one_whose_pipe_is_full_is_ended_too(
    process: JsonLinesProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes to it holds the lock meanwhile: the ping must not be waited for."""
    monkeypatch.setattr(json_lines_process, "PING_SECONDS", 0.3)
    first = process.ask("which")
    process.send("hang")
    with ThreadPoolExecutor() as threads:
        written = threads.submit(process.send, "echo", value="x" * 1_000_000)
        time.sleep(0.1)
        assert not written.done()
        process.end_if_blocked()
        with pytest.raises(ProcessFailed, match="its process ended"):
            written.result(5).result(5)
    assert process.ask("which") != first


def test_a_command_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        JsonLinesProcess(("/no/such/python",), ("hello", {})).ask("echo")
