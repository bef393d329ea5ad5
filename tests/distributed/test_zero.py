"""DeepSpeed ZeRO 0 to 3 in two processes against one process; and from one kind to another."""

import pathlib
import shutil
from types import SimpleNamespace

import pytest
import torch

from groupwise.errors import ConfigError
from groupwise.training.api import train
from groupwise.training.parallel import check_ranks
from groupwise.training.zero import FiniteAdamW, deepspeed_config, make_zero
from ranks import largest_gap, train_in_ranks
from runs import small_config, timeless_metrics
from small_models import random_policy

RUN = ["optimizer.lr=1e-4", "optimizer.weight_decay=0.1", "batch.epochs=2", "eval.every=0",
       "eval.problems=1", "eval.k=1"]  # fmt: skip
KL = ["algorithm.kl_weight=0.01"]
ADAPTER = ["adapter=lora", "gradient_checkpointing=true", *KL]
SPARING = [
    "gradient_checkpointing=offload",
    "optimizer.offload=true",
    "distributed.bucket_size=1000000",
]
BF16 = ["precision=bf16", "gradient_checkpointing=true", *KL]


def run(kind: str, *overrides: str, steps: int = 2) -> list[str]:
    return [f"steps={steps}", f"distributed.kind={kind}", *RUN, *overrides]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    pytest.importorskip("deepspeed")
    root = tmp_path_factory.mktemp("runs")
    train(small_config("steps=1", *RUN, *KL), root / "short", quiet=True)
    for name in ("one", "one_then_zero3", "one_then_zero2"):
        shutil.copytree(root / "short", root / name)
    train(small_config("steps=2", *RUN, *KL), root / "one", quiet=True)
    train(small_config("steps=2", *RUN, *ADAPTER), root / "one_adapter", quiet=True)
    offloaded = [f"distributed.offload_{what}=true" for what in ("optimizer", "parameters")]
    train_in_ranks(
        [
            *((root / f"zero{stage}", run(f"zero{stage}", *KL)) for stage in range(4)),
            (root / "offloaded", run("zero3", *KL, *offloaded)),
            *((root / f"zero{n}_sparing", run(f"zero{n}", *KL, *SPARING)) for n in (1, 2, 3)),
            (root / "zero0_checkpointed", run("zero0", *KL, SPARING[0])),
            *((root / f"zero{n}_bf16", run(f"zero{n}", *BF16)) for n in (1, 2, 3)),
            *((root / f"zero{n}_fp8", run(f"zero{n}", *BF16, "fp8=training")) for n in (2, 3)),
            (root / "one_then_zero3", run("zero3", *KL)),
            (root / "one_then_zero2", run("zero2", *KL)),
            (root / "zero2_then_one", run("zero2", *KL, steps=1)),
            (root / "zero3_then_fsdp2", run("zero3", *KL, steps=1)),
            (root / "zero3_then_fsdp2", run("fsdp2", *KL)),
            (root / "zero2_adapter", run("zero2", *ADAPTER)),
            (root / "zero3_adapter", run("zero3", *ADAPTER)),
        ]
    )
    train(small_config("steps=2", *RUN, *KL), root / "zero2_then_one", quiet=True)
    return root


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name",
    [
        *("zero0", "zero1", "zero2", "zero3", "offloaded"),
        *("one_then_zero3", "one_then_zero2", "zero2_then_one", "zero3_then_fsdp2"),
        *("zero2_adapter", "zero3_adapter"),
        *("zero0_checkpointed", "zero1_sparing", "zero2_sparing", "zero3_sparing"),
    ],
)
def test_zero_makes_the_same_run_as_one_process(runs: pathlib.Path, name: str) -> None:
    one = runs / ("one_adapter" if name.endswith("adapter") else "one")
    assert largest_gap(one, runs / name) < 1e-5
    for ours, theirs in zip(timeless_metrics(one), timeless_metrics(runs / name), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)


@pytest.mark.cluster
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_in_bf16_is_close_to_the_run_in_fp32(runs: pathlib.Path, stage: int) -> None:
    first, exact = (timeless_metrics(runs / n)[0] for n in (f"zero{stage}_bf16", "one"))
    assert first["loss"] == pytest.approx(exact["loss"], abs=0.02)
    assert first["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.5)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["distributed.kind=zero0", "optimizer.offload=true"], "use ddp, or zero1"),
        (["distributed.kind=zero2", "quantization=int8", "adapter=lora"], "cannot be cut"),
        (["distributed.kind=zero2", "optimizer.kind=adamw_8bit"], "use optimizer.kind=adamw"),
    ],
)
def test_what_zero_cannot_be_combined_with_is_refused(words: list[str], reason: str) -> None:
    two = SimpleNamespace(size=2)
    with pytest.raises(ConfigError, match=reason):
        check_ranks(small_config(*words), two)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["zero0", "zero1", "zero2"])
def test_parameters_that_every_rank_holds_cannot_be_offloaded(kind: str) -> None:
    with pytest.raises(ConfigError, match="needs kind=fsdp2 or zero3"):
        small_config(f"distributed.kind={kind}", "distributed.offload_parameters=true")


def test_a_step_on_a_gradient_that_is_not_finite_is_not_taken() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    adamw = FiniteAdamW([weight], lr=0.1)
    for value, expected in ((float("nan"), 1.0), (float("inf"), 1.0), (1.0, 0.9)):
        weight.grad = torch.tensor([1.0, value, 1.0])
        adamw.step()
        assert weight[0].item() == pytest.approx(expected, abs=1e-2)


def test_settings_become_deepspeeds() -> None:
    offload = [f"distributed.offload_{what}=true" for what in ("optimizer", "parameters")]
    config = small_config("distributed.kind=zero3", "optimizer.clip_norm=0.3", *offload)
    found = deepspeed_config(config, 3, torch.bfloat16)
    assert found["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    small = small_config("distributed.kind=zero3", "distributed.bucket_size=2000000")
    zero = deepspeed_config(small, 3, torch.bfloat16)["zero_optimization"]
    names = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
    assert [zero[name] for name in names] == [2_000_000] * 3
    assert found["gradient_clipping"] == 0.3
    assert found["bf16"] == {"enabled": True}
    assert found["zero_optimization"]["stage"] == 3
    for what in ("offload_optimizer", "offload_param"):
        assert found["zero_optimization"][what]["device"] == "cpu"
    assert (
        "offload_optimizer"
        not in deepspeed_config(small_config("distributed.kind=zero2"), 2, torch.float32)[
            "zero_optimization"
        ]
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "fix"),
    [("zero0", torch.bfloat16, "use ddp"), ("zero2", torch.float16, "precision=fp32 or bf16")],
)
def test_precisions_that_deepspeed_lacks_are_refused(
    kind: str, dtype: torch.dtype, fix: str
) -> None:
    pytest.importorskip("deepspeed")
    from groupwise.distributed.world import ALONE

    policy = random_policy(dtype=dtype)
    with pytest.raises(ConfigError, match=fix):
        make_zero(policy, small_config(f"distributed.kind={kind}"), ALONE)


@pytest.mark.cluster
@pytest.mark.parametrize("stage", [2, 3])
def test_products_are_in_8_bits_where_weights_are_gathered(runs: pathlib.Path, stage: int) -> None:
    names = f"zero{stage}_bf16", f"zero{stage}_fp8"
    halves, eighths = (timeless_metrics(runs / name)[0]["sampler_gap"] for name in names)
    assert 2 * halves < eighths < 0.1


def test_averaged_weights_are_refused() -> None:
    pytest.importorskip("deepspeed")
    from groupwise.distributed.world import ALONE

    config = small_config("distributed.kind=zero2", "optimizer.average=2")
    with pytest.raises(ConfigError, match="DeepSpeed keeps its weights"):
        make_zero(random_policy(), config, ALONE)
