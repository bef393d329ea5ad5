"""Whole runs that sample with vLLM: in servers that may be killed, and in the trainer's process."""

import json
import pathlib
import subprocess
import time
from typing import Any

import pytest
import torch
from real_vllm import ENVIRONMENT, PYTHON, command, finish, needs_vllm, recipe, serving, start
from safetensors.torch import load_file

from groupwise.tracking.run import read_metrics, read_rollouts

pytestmark = [pytest.mark.cluster, needs_vllm]


def wait_for_steps(out: pathlib.Path, steps: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if len(read_metrics(out)) >= steps:
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {steps}: {process.communicate(timeout=30)[0][-3000:]}")


def sampled(out: pathlib.Path) -> list[Any]:
    """Every answer that the run was trained on."""
    files = sorted((out / "rollouts").glob("*.gz"))
    groups = [group for path in files for group in read_rollouts(path)]
    return [[c["tokens"] for c in group["completions"]] for group in groups]


def weights(out: pathlib.Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def test_a_run_survives_one_of_two_servers_and_resumes_after_the_only_one_was_killed(
    tmp_path: pathlib.Path,
) -> None:
    path = recipe(tmp_path)
    with serving(tmp_path) as first, serving(tmp_path) as second:
        first.wait()
        second.wait()
        whole = tmp_path / "whole"
        finish(start(command(path, whole, [first, second])), 0)
        lines = read_metrics(whole)
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        # The same weights on both sides: what differs is rounding, it is weighed and it is logged.
        assert all(line["sampler_gap"] < 1e-3 for line in lines)
        assert all(line["mismatch"] == pytest.approx(1, abs=1e-3) for line in lines)
        assert all(line["updates"] == 1 for line in lines)

        survived = tmp_path / "survived"
        process = start(command(path, survived, [first, second]))
        wait_for_steps(survived, 1, process)
        second.kill()
        assert f"{second.url} is left aside" in finish(process, 0).replace("\n", "")

        ended = tmp_path / "ended"
        process = start(command(path, ended, [first]))
        wait_for_steps(ended, 2, process)
        first.kill()
        began = time.monotonic()
        output = finish(process, 2)
        assert time.monotonic() - began < 60
        assert "no vLLM server is left" in output and "Traceback" not in output
        done = len(read_metrics(ended))
        saved = sorted(folder.name for folder in (ended / "checkpoints").iterdir())
        assert saved == [f"step-{done:06d}"] and f"goes on from {ended}" in output

    with serving(tmp_path) as again:
        again.wait()
        finish(start(command(path, ended, [again])), 0)
    assert [line["step"] for line in read_metrics(ended)] == [1, 2, 3, 4]
    # The same answers in all three runs, and weights that differ by rounding alone.
    for other in (survived, ended):
        assert sampled(other) == sampled(whole)
        for name, weight in weights(whole).items():
            assert torch.allclose(weights(other)[name], weight, atol=1e-4), name


IN_PROCESS = """
import json, sys, torch
from groupwise.load import load_parts
from groupwise.recipe import parse, read_yaml
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.noise import answer_key
from groupwise.types import Request, Sampling

config = parse(read_yaml(sys.argv[1]))
with load_parts(config) as parts:
    policy, threads = parts.policy, torch.get_num_threads()
    asked = [Request(tokens, (answer_key(0, n),)) for n, (_, tokens) in
             enumerate(parts.problems["test"][:4])]
    greedy = Sampling(16, temperature=0.0)
    found = []
    for version in range(3):
        parts.engine.sync(version)
        theirs = parts.engine.generate(asked, greedy)
        ours = NativeEngine(policy, 8).generate(asked, greedy)
        pairs = [(a, b) for (a,), (b,) in zip(ours, theirs, strict=True)]
        found.append({
            "same": all(a.tokens == b.tokens and a.stop == b.stop for a, b in pairs),
            "gap": max(abs(x - y) for a, b in pairs for x, y in zip(a.logps, b.logps)),
            "versions": sorted({b.version for _, b in pairs}),
            "tokens": [b.tokens for _, b in pairs],
        })
        with torch.no_grad():
            for weight in policy.model.parameters():
                if weight.requires_grad:
                    weight.add_((0.2 if config.adapter else 0.03) * torch.randn_like(weight))
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    print("FOUND " + json.dumps(found))
"""


@pytest.mark.parametrize("adapter", [False, True], ids=["weights", "adapter"])
def test_vllm_in_the_trainers_process_follows_the_policy(
    adapter: bool, tmp_path: pathlib.Path
) -> None:
    more = ("adapter=lora", "adapter.rank=4") if adapter else ()
    path = recipe(tmp_path, *IN_THIS_PROCESS, *more)
    words = [str(PYTHON), "-c", IN_PROCESS, str(path)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert [state["versions"] for state in found] == [[0], [1], [2]]
    assert all(state["same"] and state["gap"] < 1e-3 for state in found)
    assert found[0]["tokens"] != found[1]["tokens"] != found[2]["tokens"]


IN_THIS_PROCESS = ("engine.eager=true", "engine.memory_share=0.12")


def test_a_run_with_vllm_in_its_process(tmp_path: pathlib.Path) -> None:
    path = recipe(tmp_path, *IN_THIS_PROCESS)
    words = [str(PYTHON), "-m", "groupwise", "train", str(path), "--out", str(tmp_path / "run"),
             "--quiet", "steps=3"]  # fmt: skip
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == 3 and all(line["updates"] == 1 for line in lines)
    assert all(line["sampler_gap"] < 1e-3 for line in lines)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
