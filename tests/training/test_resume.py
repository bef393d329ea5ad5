"""kill -9 at any moment, run the same command again: the same weights as the run never killed.

Each attempt is a forked process that kills itself at a chosen call of a chosen function, inside
rollouts, updates, logging and the save itself. Forking saves the import of torch; training is
single-threaded here, so it is safe.
"""

import importlib
import json
import os
import pathlib
import signal
import time

import pytest

from groupwise.config import Config
from groupwise.errors import Interrupted
from groupwise.training.api import train
from groupwise.training.checkpoint import newest_checkpoint
from runs import STATEFUL, fingerprint, small_config

CONFIG = small_config("steps=5", *STATEFUL, "eval.problems=2", "eval.k=1")

# (function, which call of it): the moment of death, counted within one process. The first few run
# in the fast lane, all of them in the slow one.
MOMENTS = [
    ("groupwise.training.update:policy_loss", 7),
    ("groupwise.training.tensor_files:save_file", 2),
    ("groupwise.training.collect:sample_group", 10),
    ("groupwise.tracking.run:RunFolder.log_metrics", 3),
    ("groupwise.tracking.whole:_sync_folder", 9),
    ("groupwise.training.api:model_card", 1),
    ("groupwise.training.collect:sample_group", 2),
    ("groupwise.training.collect:score_groups", 3),
    ("groupwise.training.step:annotate", 2),
    ("groupwise.training.step:assign_over_ranks", 4),
    ("groupwise.training.update:policy_loss", 2),
    ("groupwise.training.optim:learning_rate", 3),
    ("groupwise.training.optim:learning_rate", 10),
    ("groupwise.tracking.run:RunFolder.log_rollouts", 3),
    ("groupwise.tracking.run:RunFolder.log_metrics", 2),
    ("groupwise.training.checkpoint:save_model", 1),
    ("groupwise.training.checkpoint:make_manifest", 1),
    ("groupwise.tracking.whole:_sync", 2),
    ("groupwise.training.evaluations:save_model", 1),
    ("groupwise.training.api:save_checkpoint", 1),
    ("groupwise.training.api:save_curve", 1),
    ("groupwise.tracking.run:RunFolder.write_summary", 1),
]


def die_at(place: str, call: int) -> None:
    """Make the process kill itself when it makes the `call`-th call of a function."""
    module_name, _, path = place.partition(":")
    owner = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, name), 0

    def fatal(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, fatal)


def attempt(config: Config, folder: pathlib.Path, moment: tuple[str, int] | None) -> int:
    """Train in a forked process; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            if moment is not None:
                die_at(*moment)
            train(config, folder, quiet=True)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert attempt(CONFIG, folder, None) == 0
    return folder


def moments() -> list[object]:
    return [
        pytest.param(m, id=f"{m[0].split(':')[-1]}-{m[1]}", marks=[pytest.mark.slow] * (i >= 2))
        for i, m in enumerate(MOMENTS)
    ]


@pytest.mark.parametrize("moment", moments())
def test_killed_and_resumed_equals_never_killed(
    moment: tuple[str, int], uninterrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    assert attempt(CONFIG, folder, moment) == -signal.SIGKILL, "the moment was never reached"
    assert attempt(CONFIG, folder, None) == 0
    assert fingerprint(folder) == fingerprint(uninterrupted)


@pytest.mark.slow
def test_killed_again_and_again_equals_never_killed(
    uninterrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    for moment in MOMENTS:
        if attempt(CONFIG, folder, moment) == 0:
            break
    assert attempt(CONFIG, folder, None) == 0
    assert fingerprint(folder) == fingerprint(uninterrupted)


@pytest.mark.parametrize(
    "run_sync", ["score_groups", pytest.param("update", marks=pytest.mark.slow)]
)
def test_sigterm_saves_rollouts_not_yet_learned_from(
    run_sync: str,
    uninterrupted: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped between sampling and learning, the answers are kept: they are not sampled again."""
    from groupwise.training import collect, update

    folder, calls = tmp_path / "run", 0
    module = collect if run_sync == "score_groups" else update
    original = getattr(module, run_sync)

    def stop_here(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, run_sync, stop_here)
    with pytest.raises(Interrupted, match="SIGTERM"):
        train(CONFIG, folder, quiet=True)
    monkeypatch.undo()
    newest = newest_checkpoint(folder / "checkpoints")
    assert newest is not None
    pending = json.loads((newest / "state.json").read_text())["pending"]
    assert [len(step["groups"]) for step in pending] == ([3] if run_sync == "score_groups" else [])
    train(CONFIG, folder, quiet=True)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_more_steps_continue_a_finished_run_exactly(tmp_path: pathlib.Path) -> None:
    longer = small_config("steps=2")
    train(longer, tmp_path / "whole", quiet=True)
    train(small_config("steps=1"), tmp_path / "parts", quiet=True)
    train(longer, tmp_path / "parts", quiet=True)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
