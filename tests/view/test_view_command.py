"""groupwise view as a person runs it."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar

import pytest

from groupwise.errors import ConfigError
from groupwise.view.serve import (
    NAME_VARIABLE,
    TOKEN_VARIABLE,
    _address_of,
    _listen,
    _token,
    host_names,
    is_loopback,
)
from viewer_runs import make_run

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "viewer.md"
SHOWN = re.findall(r"^(groupwise view.*)$", DOCS.read_text(), re.M)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "groupwise", "view", *words]


@pytest.mark.parametrize("line", SHOWN)
def test_commands_shown_print_an_address_that_answers(line: str, tmp_path: pathlib.Path) -> None:
    for name in ("demo", "seed0", "seed1"):
        make_run(tmp_path / "runs" / name)
    words = [word for word in line.split("#")[0].split()[2:] if not word.isdigit()]
    words = [word for word in words if word not in ("--port", "--no-browser")]
    process = subprocess.Popen(
        command(*words, "--no-browser", "--port", "0"), stdout=subprocess.PIPE, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert b"groupwise" in opener.open(address, timeout=30).read()
        base = address.partition("/?")[0]
        runs = json.load(opener.open(f"{base}/api/runs", timeout=30))["runs"]
        assert runs and all(run["last_step"] == 3 for run in runs)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{base}/api/runs", timeout=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()


def test_no_run_is_a_message_and_exit_code_2(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        command("--no-browser"), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run under runs") and "Traceback" not in done.stderr


def test_a_taken_port_is_a_message_unless_nobody_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            _listen("127.0.0.1", port)
        monkeypatch.setattr("groupwise.view.serve.USUAL_PORT", port)
        with _listen("127.0.0.1", None) as other:
            assert other.getsockname()[1] != port


def test_a_token_from_the_environment_makes_links_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert _token() != _token()
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-that-is-long-enough")
    assert _token() == "a-token-that-is-long-enough"
    for weak in ("short", "a token with blanks in it that is long", "x" * 300):
        monkeypatch.setenv(TOKEN_VARIABLE, weak)
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            _token()


def test_only_the_outside_needs_this_machine_s_names() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
    assert host_names("127.0.0.1") == ["localhost", "127.0.0.1"]
    assert len(host_names("0.0.0.0")) == 4


def test_a_machine_that_does_not_know_its_name_is_told_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, whose own name no browser can look up."""
    monkeypatch.delenv(NAME_VARIABLE, raising=False)
    assert _address_of("0.0.0.0") == socket.gethostname()
    monkeypatch.setenv(NAME_VARIABLE, "gpu1.example.org")
    assert _address_of("0.0.0.0") == _address_of("::") == "gpu1.example.org"
    assert _address_of("10.0.0.7") == "10.0.0.7"
    assert "gpu1.example.org" in host_names("0.0.0.0")
    for wrong in ("gpu1:8642", "http://gpu1", "a b", "gpu1/?x="):
        monkeypatch.setenv(NAME_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=NAME_VARIABLE):
            host_names("0.0.0.0")


def test_the_viewer_starts_without_torch(tmp_path: pathlib.Path) -> None:
    make_run(tmp_path / "run")
    code = (
        "import sys, pathlib; from groupwise.view.server import Viewer;"
        "from groupwise.view.catalog import Catalog;"
        "viewer = Viewer(Catalog([pathlib.Path(sys.argv[1])]));"
        "run = viewer.open(next(iter(viewer._catalog._runs)));"
        "run.line(); run.metrics.window(1, None, 1); run.findings.extend(); run.decoder();"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert done.returncode == 0, done.stderr
