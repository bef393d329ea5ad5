"""One process, two with ddp, two with fsdp2: the same losses and weights; and from one to another.

The run has everything that can differ between ranks: uneven shares, groups without spread, several
updates a step, old log-probs, a reference that moves, dynamic sampling, evaluation.
"""

import pathlib
import shutil

import pytest

from groupwise.training.api import train
from ranks import largest_gap, train_in_ranks
from runs import small_config, timeless_metrics

pytestmark = pytest.mark.slow

RUN = [
    "optimizer.lr=1e-4",
    "optimizer.weight_decay=0.1",
    "batch.epochs=2",
    "batch.minibatches=2",
    "reference.kind=mixed",
    "reference.every=2",
    "algorithm.kl_weight=0.01",
    "algorithm.entropy_target=3.0",
    "rollout.max_draws=2",
    "eval.every=2",
]
AVERAGE = "optimizer.average=2"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """`one`: three steps in one process. Others: the same in two, or two of the steps elsewhere."""
    root = tmp_path_factory.mktemp("runs")
    train(small_config("steps=2", *RUN), root / "short", quiet=True)
    for name in ("one", "one_then_fsdp2"):
        shutil.copytree(root / "short", root / name)
    train(small_config("steps=3", *RUN), root / "one", quiet=True)
    train(small_config("steps=3", *RUN, AVERAGE), root / "one_averaged", quiet=True)
    ddp, fsdp2 = "distributed.kind=ddp", "distributed.kind=fsdp2"
    jobs = [
        (root / "ddp", ["steps=3", ddp, *RUN]),
        (root / "fsdp2", ["steps=3", fsdp2, *RUN]),
        (root / "fsdp2_averaged", ["steps=3", fsdp2, *RUN, AVERAGE]),
        (root / "one_then_fsdp2", ["steps=3", fsdp2, *RUN]),
        (root / "fsdp2_then_one", ["steps=2", fsdp2, *RUN]),
    ]
    train_in_ranks(jobs)
    train(small_config("steps=3", *RUN), root / "fsdp2_then_one", quiet=True)
    return root


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "one_then_fsdp2", "fsdp2_then_one"])
def test_two_ranks_make_the_same_run_as_one(runs: pathlib.Path, name: str) -> None:
    assert largest_gap(runs / "one", runs / name) < TOLERANCE
    assert largest_gap(runs / "one", runs / "short") > 10 * TOLERANCE, "nothing was learned"
    expected, found = timeless_metrics(runs / "one"), timeless_metrics(runs / name)
    assert [line["step"] for line in found] == [1, 2, 3]
    for ours, theirs in zip(expected, found, strict=True):
        assert ours.keys() == theirs.keys()
        assert theirs == pytest.approx(ours, rel=1e-3, abs=TOLERANCE)


def test_sharded_weights_are_averaged_too(runs: pathlib.Path) -> None:
    assert largest_gap(runs / "one_averaged", runs / "fsdp2_averaged") < TOLERANCE
    assert largest_gap(runs / "one_averaged", runs / "one") > 2 * TOLERANCE, "nothing was averaged"


def test_each_rank_writes_its_part_of_the_optimizer(runs: pathlib.Path) -> None:
    written = sorted((runs / "fsdp2" / "checkpoints" / "step-000003").glob("*.safetensors"))
    names = [path.name for path in written if path.name.startswith("optimizer")]
    assert names == [f"optimizer-0000{n}-of-00002.safetensors" for n in (1, 2)]
    sizes = [path.stat().st_size for path in written if path.name in names]
    assert max(sizes) < 0.7 * sum(sizes)
