"""`groupwise check --profile`: operations are told apart, the floor is counted, idle time seen."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType

from groupwise.check import profile as profile_module
from groupwise.check.peak import Peak
from groupwise.check.profile import REST, Work, covered, kind_of, make_profile, summed
from groupwise.check.show import profile_text
from groupwise.check.trial import make_trial, small_parts
from groupwise.load import load_parts
from groupwise.recipe import load_recipe


def event(name: str, start: float, end: float, device: DeviceType, own: float = 0.0) -> Any:
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, time_range=span, device_type=device, self_cpu_time_total=own)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNN", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("flash::FlashAttnFwdSm90", "attention"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::_log_softmax", "softmax over the vocabulary"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("aten::_foreach_addcdiv_", "optimizer"),
        ("aten::mul", REST),
        ("aten::mean", REST),
    ],
)
def test_operations_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_overlapping_spans_count_once() -> None:
    assert covered([(5, 7), (0, 2), (1, 3), (1, 2)]) == 5
    assert covered([]) == 0


def test_a_gpu_is_busy_while_a_kernel_runs_and_the_host_does_not_count() -> None:
    events = [
        event("aten::mm", 0, 9e6, DeviceType.CPU, own=9e6),
        event("gemm_kernel", 0, 2e6, DeviceType.CUDA),
        event("flash_fwd", 1e6, 3e6, DeviceType.CUDA),
    ]
    busy, kinds = summed(events, "cuda")
    assert busy == pytest.approx(3.0)
    assert kinds["matrix products"] == pytest.approx(0.5)
    assert kinds["attention"] == pytest.approx(0.5)


def test_on_a_cpu_a_nested_operation_has_its_own_time_and_functions_do_not_count() -> None:
    events = [
        event("ProfilerStep", 0, 9e6, DeviceType.CPU, own=5e6),
        event("aten::linear", 0, 4e6, DeviceType.CPU, own=1e6),
        event("aten::copy_", 1e6, 4e6, DeviceType.CPU, own=3e6),
    ]
    busy, kinds = summed(events, "cpu")
    assert busy == pytest.approx(4.0)
    assert kinds["copies"] == pytest.approx(0.75)


def test_the_floor_is_what_takes_longer() -> None:
    assert Work(flops=10, bytes=30).floor(Peak(flops=5, bytes=10)) == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_of_the_embedded_model_is_profiled(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a trial of the same weights; in bf16 these have masters of their own."""
    monkeypatch.setattr(profile_module, "measure_peak", lambda device: Peak(1e13, 1e13))
    settings = [
        f"precision={precision}",
        "batch.prompts=2",
        "batch.group_size=4",
        "rollout.max_completion_tokens=12",
    ]
    config = load_recipe("demo", settings)
    with load_parts(config) as parts:
        small, state = small_parts(parts)
        make_trial(small, state, config)
        profile = make_profile(small, state)
    assert profile.answers == 8
    for phase in (profile.sampling, profile.update):
        assert 0 < phase.busy <= 1
        assert sum(phase.kinds.values()) == pytest.approx(1)
        assert phase.floor is not None and 0 < phase.floor < phase.seconds
    assert profile.update.kinds["matrix products"] > 0.1
    text = profile_text(profile)
    assert max(map(len, text.splitlines())) <= 80
    assert "matrix products" in text
