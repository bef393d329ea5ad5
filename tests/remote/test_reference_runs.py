"""Whole runs whose reference is in a server: the same as in process, whatever dies on the way."""

import os
import pathlib
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from clients import wait
from groupwise.config import Config
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.load import load_policy
from groupwise.recipe import parse, write_config
from groupwise.remote.reference_client import ReferenceClient
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from held import Held
from reference_servers import TOKEN, in_process, in_thread
from runs import fingerprint, small_config
from stubs import requests_until_death

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "reference_server.md"
SHOWN = re.findall(r"^(groupwise serve.*)$", DOCS.read_text(), re.M)

KL = (
    "steps=3",
    "algorithm.kl_weight=0.05",
    "batch.tokens_per_microbatch=60",
    "checkpoint.every=1",
)


def server_config(*urls: str, more: tuple[str, ...] = ()) -> Config:
    return small_config(*KL, "reference.kind=server", f"reference.urls=[{', '.join(urls)}]", *more)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def in_process_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local") / "run"
    train(small_config(*KL), folder, quiet=True)
    return fingerprint(folder)


def tiny() -> Any:
    return load_policy("tiny", torch.device("cpu"), torch.float32)


def test_a_run_is_the_same_over_http_also_after_its_only_server_died(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, weights and stored answers, bit for bit; the second server is another address."""
    with in_thread(tiny()) as server, monkeypatch.context() as context:
        requests_until_death(context, ReferenceClient, 8)
        with pytest.raises(ModelError, match="run the same command again"):
            train(server_config(server.url), tmp_path / "run", quiet=True)
    assert 0 < len(read_metrics(tmp_path / "run")) < 3
    with in_thread(tiny()) as server:
        train(server_config(server.url), tmp_path / "run", quiet=True)
        assert server.model.thread.counts.passes > 3  # several micro-batches a step
    assert fingerprint(tmp_path / "run") == in_process_run


@pytest.mark.slow
def test_a_run_that_goes_on_remembers_what_it_started_from(tmp_path: pathlib.Path) -> None:
    """The policy has moved by then: a server of the trained model is not its reference."""
    with in_thread(tiny()) as server:
        two = server_config(server.url, more=("steps=1",))
        train(two, tmp_path / "run", quiet=True)
    trained = str(tmp_path / "run" / "model")
    policy = load_policy(trained, torch.device("cpu"), torch.float32)
    with (
        in_thread(policy) as server,
        pytest.raises(ModelError, match="another model than this run started from"),
    ):
        train(server_config(server.url), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["reference.kind=server"], "needs urls"),
        (["reference.urls=[http://a:1]"], "urls are for kind=server"),
        (["reference.kind=server", "reference.urls=[a:1]"], "must look like"),
        (["reference.kind=server", "reference.urls=['http://u:p@a:1']"], "must look like"),
        (["reference.kind=server", "reference.urls=['http://a:1/x']"], "must look like"),
        (["reference.kind=server", "reference.urls=['http://a:99999']"], "must look like"),
        (["reference.kind=server", "reference.urls=['http://[a']"], "reference"),
    ],
)
def test_addresses_are_checked_when_the_recipe_is_read(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({}, overrides)


def train_command(
    config: Config, folder: pathlib.Path, held: Held | None = None, token: str = TOKEN
) -> subprocess.Popen[str]:
    recipe = folder.parent / f"{folder.name}.yaml"
    write_config(config, recipe)
    words = ["train", str(recipe), *(held.words if held else ()), "--out", str(folder), "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-m", "groupwise", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "GROUPWISE_TOKEN": token, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_kill_9_of_one_of_two_servers_is_survived(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    held = Held(tmp_path / "run", 1)
    with ExitStack() as stack:
        (first, victim), (second, _) = (stack.enter_context(in_process()) for _ in range(2))
        run = train_command(server_config(first, second), tmp_path / "run", held)
        held.wait(1, run)
        victim.kill()
        held.go_on(1)
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert victim.poll() == -signal.SIGKILL
    assert fingerprint(tmp_path / "run") == in_process_run
    assert " ".join(said.split()).count("is gone") == 1


@pytest.mark.slow
def test_kill_9_of_the_only_server_is_exit_code_2_and_the_run_resumes_exactly(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    held = Held(tmp_path / "run", 1)
    with in_process() as (url, victim):
        run = train_command(server_config(url), tmp_path / "run", held)
        held.wait(1, run)
        victim.kill()
        held.go_on(1)
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 2 and "no reference server is left" in said
    assert "Traceback" not in said
    assert len(read_metrics(tmp_path / "run")) == 1
    with in_process() as (url, process):
        again = train_command(server_config(url), tmp_path / "run")
        said, _ = again.communicate(timeout=300)
        assert again.returncode == 0, said
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0  # gracefully
    assert fingerprint(tmp_path / "run") == in_process_run


@pytest.mark.slow
def test_a_wrong_token_is_exit_code_2(tmp_path: pathlib.Path) -> None:
    with in_process() as (url, _):
        run = train_command(server_config(url), tmp_path / "run", token="wrong" * 5)
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 2 and "refuses the token" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("line", SHOWN)
def test_commands_shown_print_an_address_and_a_token_that_work(line: str) -> None:
    bare = {k: v for k, v in os.environ.items() if k != "GROUPWISE_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-m", *line.split(), "--port", "0"],
        stdout=subprocess.PIPE, text=True, env=bare,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url, printed = (process.stdout.readline().strip() for _ in range(2))
        found = re.fullmatch(r"export GROUPWISE_TOKEN=([\w-]{32})", printed)
        expected = 65536 if "--tokens" in line else 32768
        assert found
        client = ReferenceClient(url, found[1], "GROUPWISE_TOKEN", 30)
        assert wait(client.model()).tokens == expected
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
