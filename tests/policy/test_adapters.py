"""Adapters on small random models: exact when off, right in gradient, served as they are."""

import dataclasses
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor

from engines import generate
from groupwise.config import AdapterSettings, ReferenceSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.adapters import (
    Adapter,
    add_adapter,
    base_model_of,
    load_adapter,
    merge_adapter,
)
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.load import Policy, make_policy
from groupwise.policy.reference import Reference
from groupwise.recipe import parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.probe import native_engine_problem
from groupwise.types import Request, Sampling
from small_models import random_groups, random_model, random_policy, tokenizer
from updates import accumulate, annotate

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"rslora": True},
    "dora": {"dora": True},
    "few targets": {"targets": ("q_proj", "down_proj")},
}
PROMPTS = [(5, 6, 7), (9,), tuple(range(11, 25)), (9, 30)]


def adapter_settings(**options: Any) -> AdapterSettings:
    return AdapterSettings(rank=4, alpha=6.0, **options)


def adapter_policy(
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    trained: bool = True,
    layout: str = "auto",
    **options: Any,
) -> tuple[Policy, Adapter]:
    """A random model with an adapter; a trained one has weights that change its answers."""
    model = random_model(family, dtype)
    adapter = add_adapter(model, adapter_settings(**options), dtype, seed=0)
    if trained:
        torch.manual_seed(1)
        for weight in adapter.weights().values():
            weight.data += 0.2 * torch.randn_like(weight)
    return make_policy(model, tokenizer(), layout, adapter), adapter


@torch.no_grad()
def logits(policy: Policy) -> Tensor:
    return policy.model(torch.tensor([PROMPTS[2]])).logits


def test_a_new_adapter_changes_nothing_and_is_all_that_trains() -> None:
    base = random_policy()
    for options in KINDS.values():
        policy, adapter = adapter_policy(trained=False, **options)
        gap = (logits(policy) - logits(base)).abs().max()
        assert gap == 0 if "dora" not in options else gap < 1e-5
        trainable = [n for n, p in policy.model.named_parameters() if p.requires_grad]
        assert trainable == list(adapter.weights()) and all("lora_" in name for name in trainable)


def test_the_loss_of_the_first_step_is_the_base_models() -> None:
    groups, config = random_groups(4, 4, seed=2), parse({}, ["algorithm=dr_grpo"])
    losses = []
    for policy in (random_policy(), adapter_policy(trained=False)[0]):
        metrics = accumulate(groups, policy, config)
        assert metrics is not None
        losses.append(metrics["loss"][0].item())
    assert losses[0] == losses[1] != 0


@pytest.mark.parametrize("kind", KINDS)
def test_switched_off_it_is_the_base_model_exactly(kind: str) -> None:
    policy, adapter = adapter_policy(**KINDS[kind])
    base, on = logits(random_policy()), logits(policy)
    assert (on - base).abs().max() > 0.1
    with adapter.off():
        assert torch.equal(logits(policy), base)
    assert torch.equal(logits(policy), on)
    assert all(weight.requires_grad for weight in adapter.weights().values())


def test_rslora_and_dora_are_not_plain_lora() -> None:
    found = {kind: logits(adapter_policy(**KINDS[kind])[0]) for kind in ("lora", "rslora", "dora")}
    assert (found["lora"] - found["rslora"]).abs().max() > 0.05
    assert (found["lora"] - found["dora"]).abs().max() > 0.05
    # rank 4: alpha / sqrt(4) is twice alpha / 4, so plain LoRA with twice the alpha is the same.
    model = random_model()
    doubled = add_adapter(model, AdapterSettings(rank=4, alpha=12.0), torch.float32, seed=0)
    torch.manual_seed(1)
    for weight in doubled.weights().values():
        weight.data += 0.2 * torch.randn_like(weight)
    same = logits(make_policy(model, tokenizer(), adapter=doubled))
    assert torch.allclose(same, found["rslora"], atol=1e-5)


def effective_weight(layer: object, scale: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The weight that a LoRA layer stands for, its direction, and the lengths of that (DoRA)."""
    base = layer.base_layer.weight  # pyright: ignore[reportAttributeAccessIssue]
    a = layer.lora_A["default"].weight  # pyright: ignore[reportAttributeAccessIssue]
    b = layer.lora_B["default"].weight  # pyright: ignore[reportAttributeAccessIssue]
    moved = base + scale * b @ a
    vector = layer.lora_magnitude_vector  # pyright: ignore[reportAttributeAccessIssue]
    if "default" not in vector:
        return moved, moved, None
    lengths = moved.norm(dim=1)
    return vector["default"].weight[:, None] * moved / lengths[:, None], moved, lengths


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_follow_from_the_full_gradient_by_the_chain_rule(kind: str) -> None:
    """In float64, against the same weights in a plain model that is trained whole."""
    groups, config = random_groups(3, 4, seed=5), parse({}, ["algorithm=dr_grpo"])
    policy, _ = adapter_policy(dtype=torch.float64, **KINDS[kind])
    scale = 6.0 / (4**0.5 if kind == "rslora" else 4)
    plain = random_model(dtype=torch.float64)
    layers = {n: m for n, m in policy.model.named_modules() if hasattr(m, "lora_A")}
    assert len(layers) == (4 if kind == "few targets" else 14)
    effective = {name: effective_weight(layer, scale) for name, layer in layers.items()}
    for name, (weight, _, _) in effective.items():
        plain.get_submodule(name).weight.data.copy_(weight.detach())
    whole = make_policy(plain, tokenizer())
    assert accumulate(groups, policy, config) and accumulate(groups, whole, config)
    for name, layer in layers.items():
        full = plain.get_submodule(name).weight.grad
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        _, moved, lengths = effective[name]
        if lengths is not None:  # the lengths count as constants: DoRA, section 4.3
            vector = layer.lora_magnitude_vector["default"].weight
            expected = (full * moved / lengths[:, None]).sum(1)
            assert torch.allclose(vector.grad, expected, atol=1e-9), name
            full = full * (vector / lengths)[:, None]
        assert torch.allclose(b.grad, scale * full @ a.T, atol=1e-9), name
        assert torch.allclose(a.grad, scale * b.T @ full, atol=1e-9), name
        assert b.grad.abs().max() > 1e-6


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_shared_prefixes_give_the_padded_gradient(kind: str) -> None:
    groups, config = random_groups(3, 4, seed=6), parse({})
    grads = []
    for layout in ("shared_prefix", "padded"):
        policy, adapter = adapter_policy(layout=layout, **KINDS[kind])
        assert policy.layout == layout
        accumulate(groups, policy, config)
        grads.append(torch.cat([w.grad.flatten() for w in adapter.weights().values()]))  # pyright: ignore
    assert (grads[0] - grads[1]).abs().max() < 1e-6 < grads[0].abs().max()


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "lora"), ("qwen3", "lora"), ("gemma2", "lora"), ("llama", "dora")],
)
def test_the_native_engine_decodes_like_pefts_own_generate(family: str, kind: str) -> None:
    policy, adapter = adapter_policy(family, **KINDS[kind])
    assert native_engine_problem(policy) is None
    requests = [Request(prompt, (0,)) for prompt in PROMPTS]
    found = generate(NativeEngine(policy, 3), requests, Sampling(16, temperature=0.0))
    for prompt, (answer,) in zip(PROMPTS, found, strict=True):
        tokens = torch.tensor([prompt])
        out = adapter.peft.generate(
            input_ids=tokens, max_new_tokens=16, do_sample=False, pad_token_id=0
        )
        assert answer.tokens == tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_sampled_log_probs_are_the_trainers(kind: str) -> None:
    policy, _ = adapter_policy(**KINDS[kind])
    check_sampled_log_probs(policy, 1e-4)


def check_sampled_log_probs(policy: Policy, tolerance: float) -> None:
    requests = [Request(prompt, (n, n + 10)) for n, prompt in enumerate(PROMPTS)]
    answers = generate(NativeEngine(policy, 3), requests, Sampling(12, 0.9))
    groups = [
        dataclasses.replace(group, prompt_tokens=request.prompt_tokens, completions=drawn)
        for group, request, drawn in zip(random_groups(4), requests, answers, strict=True)
    ]
    config = parse({}, ["rollout.temperature=0.9", "batch.epochs=2"])
    for group in annotate(groups, policy, None, config):
        for completion in group.completions:
            assert completion.old_logprobs == pytest.approx(completion.logprobs, abs=tolerance)


def test_the_random_half_depends_on_the_seed_alone() -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(torch.randint(1000, ()).item())  # pyright: ignore[reportArgumentType]
        adapter = add_adapter(random_model(), adapter_settings(), torch.float32, seed)
        return torch.cat([weight.flatten() for weight in adapter.weights().values()])

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


def test_a_target_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"qproj.*down_proj.*q_proj"):
        add_adapter(random_model(), adapter_settings(targets=("qproj",)), torch.float32, 0)


def reference_logprobs(reference: Reference) -> Tensor:
    from groupwise.batch import make_batch
    from groupwise.policy.packing import microbatches

    (micro,) = microbatches(make_batch(random_groups(2)), "padded", 9999)
    with torch.no_grad():
        return answer_logprobs(reference.policy, micro.rows, 1.0)[0]


def test_a_frozen_reference_is_the_base_without_a_second_model() -> None:
    policy, _ = adapter_policy(layout="padded")
    reference = Reference(policy, ReferenceSettings())
    assert reference.policy.model is policy.model and not reference.state() and not reference.saved
    base = Reference(random_policy(layout="padded"), ReferenceSettings())
    assert torch.equal(reference_logprobs(reference), reference_logprobs(base))


@pytest.mark.parametrize("kind", ["copied", "mixed", "frozen, already trained"])
def test_other_references_are_other_adapter_weights(kind: str) -> None:
    policy, adapter = adapter_policy(layout="padded")
    settings = ReferenceSettings(every=1, alpha=0.25)
    if kind == "frozen, already trained":
        started = dataclasses.replace(adapter, starts_as_base=False)
        policy = dataclasses.replace(policy, adapter=started)
    else:
        settings = settings.model_copy(update={"kind": kind})
    reference = Reference(policy, settings)
    assert reference.saved and reference.policy.model is policy.model
    before, own = reference_logprobs(reference), logits(policy)
    start = {name: weight.detach().clone() for name, weight in adapter.weights().items()}
    for weight in adapter.weights().values():
        weight.data += 0.1
    assert torch.equal(reference_logprobs(reference), before)
    assert not torch.equal(logits(policy), own)
    reference.refresh(policy, step=1)
    share = {"copied": 1.0, "mixed": 0.25}.get(kind, 0.0)
    for name, weight in reference.state().items():
        assert torch.allclose(weight, start[name] + 0.1 * share, atol=1e-6)


def test_adapters_are_saved_and_merged_in_pefts_format(tmp_path: pathlib.Path) -> None:
    policy, adapter = adapter_policy()
    adapter.peft.peft_config["default"].base_model_name_or_path = "some/model"
    adapter.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert base_model_of(tmp_path) == "some/model"
    merged = merge_adapter(random_model(), tmp_path)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert torch.allclose(logits(make_policy(merged, tokenizer())), logits(policy), atol=1e-4)
    again = random_model()
    load_adapter(again, tmp_path, adapter_settings(), torch.float32, starts_as_base=True)
    assert torch.equal(logits(make_policy(again, tokenizer())), logits(policy))
    with pytest.raises(ConfigError, match=r"rank=4, not 8: set adapter\.rank=4"):
        wrong = adapter_settings().model_copy(update={"rank": 8})
        load_adapter(random_model(), tmp_path, wrong, torch.float32, starts_as_base=True)


def test_folders_that_hold_no_usable_adapter_say_why(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "adapter_config.json"
    for text, reason in [
        ("{", "cannot be read"),
        ('{"peft_type": "IA3", "base_model_name_or_path": "a/b"}', "only LORA"),
        ('{"peft_type": "LORA", "base_model_name_or_path": null}', "set base_model_name"),
    ]:
        config.write_text(text)
        with pytest.raises(ModelError, match=reason):
            base_model_of(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        merge_adapter(random_model(), tmp_path)
