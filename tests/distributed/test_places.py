"""Two ranks with every place and timing that a CPU can run, against one process.

Workers are real processes. In turn and ahead the weights are those of one process; in flight what
is learned from depends on timing, so there it is the bookkeeping that is compared.
"""

import importlib.util
import json
import pathlib
import shutil

import pytest

from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import train
from groupwise.training.checkpoint import newest_checkpoint
from ranks import largest_gap, train_in_ranks
from runs import small_config, timeless_metrics

RUN = [
    "steps=3",
    "optimizer.lr=1e-4",
    "batch.epochs=2",
    "batch.minibatches=2",
    "rollout.max_draws=2",
    "rollout.overlong_buffer=12",
    "eval.every=2",
    "eval.k=1",
]
AHEAD, IN_FLIGHT = "timing.kind=ahead", "timing.kind=in_flight"
WORKERS = "place.count=1"
TOLERANCE = 1e-5
EQUAL = {
    "ddp_here_ahead": ["distributed.kind=ddp", AHEAD],
    "ddp_workers": ["distributed.kind=ddp", WORKERS],
    "ddp_workers_ahead": ["distributed.kind=ddp", WORKERS, AHEAD],
    "fsdp2_here_ahead": ["distributed.kind=fsdp2", AHEAD],
    "fsdp2_workers": ["distributed.kind=fsdp2", WORKERS],
    "fsdp2_workers_ahead": ["distributed.kind=fsdp2", WORKERS, AHEAD],
}
if importlib.util.find_spec("deepspeed"):
    EQUAL["zero3_workers"] = ["distributed.kind=zero3", WORKERS]
FLIGHTS = {
    "ddp_here_in_flight": ["distributed.kind=ddp", IN_FLIGHT],
    "fsdp2_workers_in_flight": ["distributed.kind=fsdp2", WORKERS, IN_FLIGHT],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("places")
    train(small_config(*RUN), root / "one", quiet=True)
    train(small_config(*RUN, AHEAD), root / "one_ahead", quiet=True)
    killed_after_two_steps(root / "one_ahead", root / "one_then_ranks_ahead")
    for jobs in (EQUAL, {**FLIGHTS, "one_then_ranks_ahead": EQUAL["ddp_workers_ahead"]}):
        train_in_ranks([(root / name, [*RUN, *overrides]) for name, overrides in jobs.items()])
    killed_after_two_steps(root / "ddp_here_ahead", root / "ranks_then_one_ahead")
    train(small_config(*RUN, AHEAD), root / "ranks_then_one_ahead", quiet=True)
    return root


def killed_after_two_steps(whole: pathlib.Path, folder: pathlib.Path) -> None:
    """What a run that was killed in its third step has left: answers sampled ahead wait there."""
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    for name in ("model", "checkpoints/step-000003"):
        shutil.rmtree(folder / name)
    state = json.loads((folder / "checkpoints" / "step-000002" / "state.json").read_text())
    assert [len(step["groups"]) for step in state["pending"]] == [3]


@pytest.mark.cluster
@pytest.mark.parametrize("name", [*EQUAL, "one_then_ranks_ahead", "ranks_then_one_ahead"])
def test_ranks_places_and_timings_change_nothing(runs: pathlib.Path, name: str) -> None:
    one = runs / ("one_ahead" if name.endswith("ahead") else "one")
    assert largest_gap(one, runs / name) < TOLERANCE
    for ours, theirs in zip(timeless_metrics(one), timeless_metrics(runs / name), strict=True):
        assert ours.keys() == theirs.keys()
        assert theirs == pytest.approx(ours, rel=1e-3, abs=TOLERANCE)
    for path in sorted((one / "rollouts").glob("*.gz")):
        ours, theirs = read_rollouts(path), read_rollouts(runs / name / "rollouts" / path.name)
        for a, b in zip(ours, theirs, strict=True):
            assert a["problem"] == b["problem"]
            for c, d in zip(a["completions"], b["completions"], strict=True):
                assert (c["tokens"], c["text"]) == (d["tokens"], d["text"])


@pytest.mark.cluster
def test_ranks_keep_no_whole_copy_of_a_sharded_model_that_workers_sample_from(
    runs: pathlib.Path,
) -> None:
    def embeddings(name: str) -> int:
        return int((runs / name / "embeddings-1.json").read_text())

    assert embeddings("fsdp2_here_ahead") > 0
    sharded = [name for name in EQUAL if name.startswith(("fsdp2_workers", "zero3_workers"))]
    assert [embeddings(name) for name in sharded] == [0] * len(sharded)


@pytest.mark.cluster
@pytest.mark.parametrize("name", FLIGHTS)
def test_in_flight_ranks_learn_from_each_problem_once(runs: pathlib.Path, name: str) -> None:
    lines = read_metrics(runs / name)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(0 <= line["staleness_max"] <= 4 for line in lines)
    stored = [read_rollouts(path) for path in sorted((runs / name / "rollouts").glob("*.gz"))]
    assert [len(groups) for groups in stored] == [3, 3, 3]
    learned = [group["problem"]["id"] for groups in stored for group in groups]
    assert len(set(learned)) == 9
    newest = newest_checkpoint(runs / name / "checkpoints")
    assert newest is not None
    state = json.loads((newest / "state.json").read_text())
    waiting = [*state["open"], *(place for place, _ in state["complete"])]
    drawn = int(sum(line["problems_drawn"] for line in lines))
    assert len(set(waiting)) == len(waiting) == state["cursor"] - drawn
