"""Whole runs that sample with vLLM: in servers that may be killed, and in the trainer's process."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groupwise.recipe import write_config
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import train
from groupwise.training.callbacks import Event
from held import Held
from ranks import train_in_ranks
from real_vllm import (
    COMBINATIONS,
    ENVIRONMENT,
    PYTHON,
    STEPS,
    TOKEN,
    Servers,
    config,
    needs_vllm,
)

pytestmark = [pytest.mark.cluster, needs_vllm]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


def sampled(out: pathlib.Path) -> list[Any]:
    """Every answer that the run was trained on."""
    files = sorted((out / "rollouts").glob("*.gz"))
    groups = [group for path in files for group in read_rollouts(path)]
    return [[c["tokens"] for c in group["completions"]] for group in groups]


def weights(out: pathlib.Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def test_a_run_survives_one_of_two_servers_and_resumes_after_the_only_one_was_killed(
    servers: Servers, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = servers.ready(2)
    whole = tmp_path / "whole"
    train(config(servers=[first, second]), whole, quiet=True)
    lines = read_metrics(whole)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # The same weights on both sides: what differs is rounding, it is weighed and it is logged.
    assert all(line["sampler_gap"] < 1e-3 for line in lines)
    assert all(line["mismatch"] == pytest.approx(1, abs=1e-3) for line in lines)
    assert all(line["updates"] == 1 for line in lines)

    survived = tmp_path / "survived"
    caplog.clear()

    def kill_the_second(event: Event) -> None:
        if event.step == 1:
            second.kill()

    train(config(servers=[first, second]), survived, callbacks=[kill_the_second], quiet=True)
    assert f"{second.url} is gone" in caplog.text

    ended = tmp_path / "ended"
    recipe = tmp_path / "recipe.yaml"
    write_config(config(servers=[first]), recipe)
    servers.begin(2)  # the next one is on its way when the only one goes
    servers.begin_for_adapters()
    held = Held(ended, 2)
    words = ["train", str(recipe), *held.words, "--out", str(ended), "--quiet"]
    run = subprocess.Popen(
        [sys.executable, "-m", "groupwise", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    held.wait(2, run)
    first.kill()
    held.go_on(2)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 2, said
    assert "no vLLM server is left" in said and "Traceback" not in said
    assert len(read_metrics(ended)) == 2
    saved = sorted(folder.name for folder in (ended / "checkpoints").iterdir())
    assert saved == ["step-000002"] and f"goes on from {ended}" in said

    (again,) = servers.ready(1)
    train(config(servers=[again]), ended, quiet=True)
    assert [line["step"] for line in read_metrics(ended)] == [1, 2, 3, 4]
    # The same answers in all three runs, and weights that differ by rounding alone.
    for other in (survived, ended):
        assert sampled(other) == sampled(whole)
        for name, weight in weights(whole).items():
            assert torch.allclose(weights(other)[name], weight, atol=1e-4), name


IN_PROCESS = """
import asyncio, json, sys, torch
from groupwise.recipe import parse, read_yaml
from groupwise.rollout.native.engine import NativeEngine
from groupwise.remote.vllm_colocated import VllmColocated
from groupwise.training.api import train
from groupwise.types import Request, Sampling
from groupwise.rollout.engine import generate

sample, greedy, asked, found = VllmColocated.sample, Sampling(16, temperature=0.0), [], []

async def compared(self, request, sampling):
    cuts = [request.prompt_tokens[:length] for length in (None, -1, -2)]
    asked[:] = asked or [Request(prompt, request.keys[:1]) for prompt in cuts]
    if self.version == len(found):  # the first time that it is asked by these weights
        found.append({})
        theirs = await asyncio.gather(*(sample(self, one, greedy) for one in asked))
        ours = generate(NativeEngine(self.policy, 8), asked, greedy)
        pairs = [(a, b) for (a,), (b,) in zip(ours, theirs, strict=True)]
        found[-1] = {
            "same": all(a.tokens == b.tokens and a.stop == b.stop for a, b in pairs),
            "gap": max(abs(x - y) for a, b in pairs for x, y in zip(a.logprobs, b.logprobs)),
            "versions": sorted({b.version for _, b in pairs}),
            "tokens": [b.tokens for _, b in pairs],
        }
    return await sample(self, request, sampling)

VllmColocated.sample = compared
threads = torch.get_num_threads()
train(parse(read_yaml(sys.argv[1])), sys.argv[2], quiet=True)
assert torch.get_num_threads() == threads
torch.set_num_threads(1)
print("FOUND " + json.dumps(found))
"""


@pytest.mark.parametrize(
    "more",
    [("optimizer.lr=0.01",), ("adapter=lora", "adapter.rank=4", "optimizer.lr=0.1")],
    ids=["weights", "adapter"],
)
def test_vllm_in_the_trainers_process_follows_the_policy_through_a_run(
    more: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    path, out = tmp_path / "recipe.yaml", tmp_path / "run"
    write_config(config("engine.eager=true", "engine.memory_share=0.12", *more), path)
    words = [str(PYTHON), "-c", IN_PROCESS, str(path), str(out)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert [state["versions"] for state in found] == [[step] for step in range(STEPS + 1)]
    assert all(state["same"] and state["gap"] < 1e-3 for state in found)
    assert all(a["tokens"] != b["tokens"] for a, b in pairwise(found))
    lines = read_metrics(out)
    assert len(lines) == STEPS and all(line["updates"] == 1 for line in lines)
    assert all(line["sampler_gap"] < 1e-3 for line in lines)
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


COMBINED = ["steps=2", "engine.kind=vllm", "checkpoint.every=0", "rollout.overlong_buffer=16",
            "eval.problems=2", "eval.k=1", "eval.every=1", "engine.max_batch=16"]  # fmt: skip
OWN_VLLM = ["engine.eager=true", "engine.memory_share=0.12"]


@pytest.fixture(scope="module")
def combined(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str, int], pathlib.Path]:
    """combined(place, timing, ranks) is the folder of that run. All timings of a place are trained
    when the first of them is asked for, one after the other."""
    root = tmp_path_factory.mktemp("combined")

    @cache
    def trained(place: str, ranks: int) -> None:
        settings = [*COMBINED, *OWN_VLLM, f"place={place}"]
        if place == "servers":
            (server,) = servers.ready(1)
            settings = [*COMBINED, f"place.urls=[{server.url}]", "place.timeout=120"]
        timings = [t for _, there, t, size in COMBINATIONS if (there, size) == (place, ranks)]
        jobs = [
            (root / f"{place}-{timing}-{ranks}", [*settings, f"timing.kind={timing}"])
            for timing in timings
        ]
        train_in_ranks(jobs, ranks, PYTHON, ENVIRONMENT)

    def folder(place: str, timing: str, ranks: int) -> pathlib.Path:
        trained(place, ranks)
        return root / f"{place}-{timing}-{ranks}"

    return folder


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(map(str, c)))
def test_vllm_in_every_place_with_every_timing(
    combined: Callable[[str, str, int], pathlib.Path], combination: tuple[str, str, str, int]
) -> None:
    """Processes and servers take weights as whole and as differences. What is drawn follows from
    seeds and weights, wherever that is."""
    _, place, timing, ranks = combination
    out = combined(place, timing, ranks)
    lines = read_metrics(out)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["updates"] == 1 and "eval/accuracy" in line for line in lines)
    if timing == "in_turn":
        assert all(line["sampler_gap"] < 1e-3 for line in lines)
    if timing == "ahead":
        assert [line["staleness_max"] for line in lines] == [0, 1]
    if timing == "in_flight":
        assert all(0 <= line["staleness_max"] <= 4 for line in lines)
        files = sorted((out / "rollouts").glob("*.gz"))
        learned = [group["problem"]["id"] for path in files for group in read_rollouts(path)]
        assert len(set(learned)) == len(learned) == 6
    else:
        assert sampled(out) == sampled(combined("servers", timing, 1))
