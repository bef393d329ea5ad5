"""kill -9 in mid-episode, run the same command again: the same run as one that was never killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from groupwise.config import Config
from runs import fingerprint, small_config

ENVIRONMENT = '''
import os, random, signal, time

from groupwise.environments.base import Reply

steps = 0


class Digits:
    """Replies at a time of its own; notes whom it was made for, and dies where it is told to."""

    tools = ()

    def __init__(self, problem):
        self.answer, self.turns = str(problem.columns["answer"]), 0
        with open(os.environ["ASKED"], "a") as file:
            file.write(problem.id + "\\n")

    async def reset(self, problem, seed):
        return Reply()

    async def step(self, turn):
        global steps
        steps += 1
        if str(steps) == os.environ.get("DIES_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01 * random.random())
        self.turns += 1
        reward = sum(digit in turn.text for digit in self.answer) + 0.1 * len(turn.text)
        reply = ({"role": "user", "content": f"reply {self.turns}"},)
        return Reply(reply, reward, self.turns == 3)

    async def score(self):
        return {"turns": float(self.turns)}

    async def close(self):
        pass
'''

SMALL = (
    "steps=3",
    "batch.prompts=2",
    "batch.group_size=3",
    "checkpoint.every=1",
    "eval.problems=1",
    "eval.k=1",
    "rollout.max_completion_tokens=30",
    "rollout.max_prompt_tokens=256",
    "environment.in_rounds=true",
    "environment.isolation=thread",
)
SCRIPT = """
import json, sys
from groupwise.recipe import parse
from groupwise.training.api import train
train(parse(json.loads(sys.argv[1])), sys.argv[2], quiet=True)
"""


def attempt(config: Config, folder: pathlib.Path, dies_at: int | None) -> int:
    """Train in a process of its own, which dies at a call of the environment."""
    told = {"ASKED": str(folder.parent / f"{folder.name}.asked"), "DIES_AT": str(dies_at)}
    settings = config.model_dump_json()
    command = [sys.executable, "-c", SCRIPT, settings, str(folder)]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def timeless(folder: pathlib.Path) -> object:
    """A fingerprint without how long environments took."""
    prints = fingerprint(folder)
    for row in prints["metrics"]:
        row.pop("episode/waiting", None)
    for groups in prints["rollouts"].values():
        for completion in (c for group in groups for c in group["completions"]):
            for clock in ("seconds", "waited"):
                if completion["episode"] is not None:
                    completion["episode"].pop(clock)
    return json.loads(json.dumps(prints))


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["in_turn", "ahead"])
def test_killed_in_mid_episode_equals_never_killed(timing: str, tmp_path: pathlib.Path) -> None:
    """With log-probs, to the last digit; what was sampled before is not asked for again."""
    (tmp_path / "digits.py").write_text(ENVIRONMENT)
    own = (f"environment={tmp_path}/digits.py:Digits", *SMALL, f"timing={timing}")
    config = small_config(*own)
    assert attempt(config, tmp_path / "whole", None) == 0
    # Evaluation makes one episode of 3 turns, a step 6 of them: this is the second turn of step 2.
    assert attempt(config, tmp_path / "killed", 3 + 18 + 8) == -signal.SIGKILL
    assert attempt(config, tmp_path / "killed", None) == 0
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")
    asked = (tmp_path / "killed.asked").read_text().split()
    assert len(asked) > len((tmp_path / "whole.asked").read_text().split()), "one step was cut off"
