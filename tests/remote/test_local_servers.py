"""Workers that the trainer starts: they begin, they are begun again, and they never stay behind."""

import importlib.util
import os
import sys
import time

import pytest
import torch

from groupwise.config import Config, Processes
from groupwise.errors import MissingExtraError, ModelError
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.local_servers import LocalServer, gpu_for, rollout_workers, vllm_processes
from groupwise.remote.worker_client import WorkersEngine
from small_models import random_policy

LISTENS = "import sys; print('http://127.0.0.1:5', flush=True); sys.stdin.read()"


def local(code: str, timeout: float = 20.0) -> LocalServer:
    return LocalServer([sys.executable, "-c", code], dict(os.environ), timeout)


def test_one_says_where_it_listens_ends_with_its_pipe_and_can_be_begun_again() -> None:
    worker = local(LISTENS)
    assert worker.start() == "http://127.0.0.1:5"
    first = worker.process
    assert first is not None and first.poll() is None
    assert os.getsid(first.pid) != os.getsid(0)  # Ctrl-C is for the trainer
    worker.start()
    second = worker.process
    assert first.poll() == 0 and second is not None and second.pid != first.pid
    worker.stop()
    worker.stop()
    assert second.poll() == 0


def test_one_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.remote.local_servers.LEAVE_SECONDS", 0.2)
    worker = local("import time; print('http://127.0.0.1:5', flush=True); time.sleep(60)")
    worker.start()
    process, began = worker.process, time.monotonic()
    worker.stop()
    assert process is not None and process.poll() == -9 and time.monotonic() - began < 20


def test_one_that_ends_or_says_nothing_is_an_error_with_its_command() -> None:
    with pytest.raises(ModelError, match=r"ended with code 3 before it listened.*Try it: .*-c"):
        local("raise SystemExit(3)").start()
    silent = local("import sys; sys.stdin.read()", timeout=0.3)
    with pytest.raises(ServerUnavailable, match=r"did not start within 0\.3 s"):
        silent.start()
    silent.stop()


def test_they_load_what_the_trainer_loads() -> None:
    config = Config.model_validate(
        {
            "place": {"count": 2},
            "precision": "bf16",
            "device": "cpu",
            "quantization": "int8",
            "adapter": {},
        }
    )
    first, second = rollout_workers(config, Processes(count=2), "s3cret")
    words = " ".join(first.command)
    assert "serve rollouts tiny --device cpu --precision bf16" in words
    assert words.endswith("--quantization int8 --port 0 --until-eof")
    assert first.environment["GROUPWISE_TOKEN"] == "s3cret" and "s3cret" not in words
    assert second.environment["OMP_NUM_THREADS"] == str(torch.get_num_threads())


def test_vllm_is_started_with_the_recipes_settings_in_the_policys_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"kind": "vllm", "memory_share": 0.3, "eager": True, "max_batch": 8}
    config = Config.model_validate({"engine": settings, "adapter": {"rank": 4}})
    place = Processes(count=1)
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(MissingExtraError, match="vllm"):
            vllm_processes(config, place, torch.float32, "s3cret", 64)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    (server,) = vllm_processes(config, place, torch.float32, "s3cret", 64)
    words = " ".join(server.command)
    assert "serve vllm tiny --precision fp32 --max-model-len 64 --lora-rank 4" in words
    assert "--gpu-memory-utilization 0.3 --max-num-seqs 8 --enforce-eager" in words
    assert words.endswith("--port 0 --until-eof") and "s3cret" not in words


def test_they_get_the_other_gpus_first() -> None:
    given = [gpu_for(index, ["0", "1", "2"])["CUDA_VISIBLE_DEVICES"] for index in range(3)]
    assert given == ["1", "2", "1"]
    assert gpu_for(1, ["5"]) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert gpu_for(0, []) == {}


def test_without_the_packages_of_a_server_the_message_is_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    config = Config.model_validate({"place": {"count": 1}})
    with pytest.raises(MissingExtraError, match=r"pip install 'groupwise\[serve\]'"):
        WorkersEngine(random_policy(), config)
