"""DeepSpeed on a GPU: every stage with the precisions and savings that it runs with there.

One rank, over NCCL. DeepSpeed's engine computes, scales, clips, steps, offloads and checkpoints as
with several; between ranks there is nothing to send.
"""

import os
import pathlib

import pytest
import torch

from groupwise.training import parallel
from groupwise.training.api import train
from ranks import free_port, largest_gap, variables
from runs import small_config, timeless_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RUN = ["device=cuda", "steps=2", "batch.epochs=2", "optimizer.lr=1e-4", "algorithm.kl_weight=0.01",
       "eval.every=0", "eval.problems=1", "eval.k=1"]  # fmt: skip
OFFLOAD = "distributed.offload_optimizer=true"
SAVINGS = {
    "plain": [],
    "checkpointed": ["gradient_checkpointing=true"],
    "offloaded": [OFFLOAD, "gradient_checkpointing=offload"],
    "parameters": [OFFLOAD, "distributed.offload_parameters=true"],
}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("one")
    for precision in ("fp32", "bf16", "fp16"):
        train(small_config(*RUN, f"precision={precision}"), root / precision, quiet=True)
    return root


def cases() -> list[tuple[str, str, str]]:
    """What the page of cot_deepspeed offers; parameters are cut, and so offloaded, in stage 3."""
    stages = [(f"zero{stage}", p) for stage in (1, 2, 3) for p in ("fp32", "bf16", "fp16")]
    found = [(*stage, saving) for stage in stages for saving in SAVINGS]
    found = [case for case in found if case[0] == "zero3" or case[2] != "parameters"]
    return [("zero0", "fp32", "plain"), ("zero0", "fp32", "checkpointed"), *found]


@pytest.mark.parametrize(("kind", "precision", "saving"), cases())
def test_a_stage_trains_as_one_process_does(
    kind: str,
    precision: str,
    saving: str,
    one_process: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("deepspeed")
    for name, value in variables(0, 1, int(os.environ.get("MASTER_PORT") or free_port())).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(parallel, "kind_for", lambda config, world: config.distributed.kind)
    words = [*SAVINGS[saving], f"distributed.kind={kind}", f"precision={precision}"]
    train(small_config(*RUN, *words), tmp_path / "run", quiet=True)
    ours, theirs = (timeless_metrics(f)[0] for f in (one_process / precision, tmp_path / "run"))
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=0.05, abs=1e-4)
    assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=0.05)
    assert theirs["updates"] == ours["updates"] == 2
    # AdamW moves a weight by its rate at most, four times, here and there; fp16 rounds besides.
    assert largest_gap(one_process / precision, tmp_path / "run") < 2 * 4 * 1e-4 + 1e-3
