"""kill -9 in mid-episode, run the same command again: the same run as one that was never killed."""

import json
import pathlib
import signal
from collections.abc import Callable
from functools import cache

import pytest

from groupwise.config import Config
from runs import fingerprint, small_config
from training import test_resume

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
IN_A_CALL = "a call of the environment"
MOMENTS = [
    # Evaluation makes one episode of 3 turns, a step 6 of them: these are in step 2.
    (IN_A_CALL, 3 + 18 + 8),
    ("groupwise.environments.episode:EpisodeRun._turn", 3 + 18 + 9),
    ("groupwise.environments.episode:cut_answer", 3 + 18 + 5),
    ("groupwise.environments.episode:checked_scores", 1 + 6 + 3),
    ("groupwise.environments.groups:as_group", 1 + 2 + 2),
    ("groupwise.tracking.run:RunFolder.log_rollouts", 2),
    ("groupwise.tracking.run:RunFolder.log_metrics", 2),
]
"""Where the process dies, and at which call: in a tool, between two turns, behind a turn that was
sampled, while an episode is scored, while a group is put together, and while all that is stored."""


def attempt(config: Config, folder: pathlib.Path, moment: tuple[str, int] | None) -> int:
    """Train in a forked process, which may have to die."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASKED", str(folder.parent / f"{folder.name}.asked"))
        if moment is not None and moment[0] == IN_A_CALL:
            patch.setenv("DIES_AT", str(moment[1]))
            moment = None
        return test_resume.attempt(config, folder, moment)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Config, pathlib.Path]]:
    """By timing: the settings, and a run that was never killed."""

    @cache
    def run(timing: str) -> tuple[Config, pathlib.Path]:
        folder = tmp_path_factory.mktemp(timing)
        (folder / "digits.py").write_text(ENVIRONMENT)
        own = (f"environment={folder}/digits.py:Digits", *SMALL, f"timing={timing}")
        config = small_config(*own)
        assert attempt(config, folder / "whole", None) == 0
        return config, folder / "whole"

    return run


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
@pytest.mark.parametrize(
    ("timing", "moment"),
    [*(("in_turn", each) for each in MOMENTS), ("ahead", MOMENTS[0]), ("ahead", MOMENTS[5])],
    ids=lambda value: value if isinstance(value, str) else value[0].split(":")[-1],
)
def test_killed_in_mid_episode_equals_never_killed(
    timing: str,
    moment: tuple[str, int],
    whole: Callable[[str], tuple[Config, pathlib.Path]],
    tmp_path: pathlib.Path,
) -> None:
    """With log-probs, to the last digit; what was stored before is not asked for again."""
    config, never_killed = whole(timing)
    killed = tmp_path / "killed"
    assert attempt(config, killed, moment) == -signal.SIGKILL, "the moment was never reached"
    assert attempt(config, killed, None) == 0
    assert timeless(killed) == timeless(never_killed)
    asked = (tmp_path / "killed.asked").read_text().split()
    before = (never_killed.parent / "whole.asked").read_text().split()
    assert len(before) <= len(asked) < 2 * len(before), "only what was cut off is asked again"
