"""LoRA: a frozen model with a small trainable addition, through PEFT.

PEFT puts its layers into the transformers model itself, so a policy's `model` stays an ordinary
model, of which only the adapter's weights are trainable: engines serve it, batches run through it
and the optimizer steps it without knowing. PEFT's wrapper is kept beside it (`Policy.adapter`) to
switch the adapter off, save it and merge it. Unlike PEFT's default, adapter weights have the
precision of the model: the optimizer keeps fp32 masters of them, as of all weights.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from groupwise.config import AdapterSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.folder_limits import check_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_ATTENTION = ("c_attn", "query_key_value", "qkv_proj", "Wqkv")
SAME_LAYERS: dict[str, tuple[str, ...]] = {
    "q_proj": _ATTENTION,
    "k_proj": _ATTENTION,
    "v_proj": _ATTENTION,
    "o_proj": ("c_proj", "out_proj", "dense"),
    "up_proj": ("c_fc", "dense_h_to_4h", "gate_up_proj", "fc1"),
    "down_proj": ("c_proj", "dense_4h_to_h", "fc2"),
}
"""Llama's names of layers -> those of families that have other ones. Several keep queries, keys
and values in one layer."""


@dataclass(frozen=True)
class Adapter:
    """`peft` wraps the policy's model. `starts_as_base`: switched off, it is the run's start."""

    peft: Any
    starts_as_base: bool

    def weights(self) -> dict[str, nn.Parameter]:
        model = self.peft.get_base_model()
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    @contextmanager
    def off(self) -> Iterator[None]:
        """The model without its adapter, exactly."""
        self.peft.base_model.disable_adapter_layers()
        try:
            yield
        finally:
            self.peft.base_model.enable_adapter_layers()

    @contextmanager
    def with_weights(self, others: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with other weights in its adapter."""
        own = self.weights()
        before = {name: weight.data for name, weight in own.items()}
        try:
            for name, weight in own.items():
                weight.data = others[name]
            yield
        finally:
            for name, weight in own.items():
                weight.data = before[name]

    def save(self, folder: pathlib.Path) -> None:
        """PEFT's own format, without the card that it would write."""
        self.peft.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)


def add_adapter(model: Any, settings: AdapterSettings, dtype: torch.dtype, seed: int) -> Adapter:
    """A new adapter, which changes nothing yet. Its random half depends on `seed` alone."""
    from peft import LoraConfig, get_peft_model

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    whole = settings.alpha == int(settings.alpha)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=int(settings.alpha) if whole else settings.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=settings.dropout,
        target_modules=targets,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            peft = get_peft_model(model, config, autocast_adapter_dtype=False)
        except ValueError as error:
            raise ConfigError(
                f"adapter.targets={targets} does not fit {type(model).__name__} "
                f"({str(error).splitlines()[0]}); its linear layers: {', '.join(_linear(model))}"
                f"{_same_layers(model, targets)}"
            ) from error
    return in_precision(Adapter(peft, starts_as_base=True), dtype)


def load_adapter(
    model: Any,
    folder: pathlib.Path,
    settings: AdapterSettings,
    dtype: torch.dtype,
    *,
    starts_as_base: bool,
) -> Adapter:
    """The adapter saved in `folder`, to be trained on; it must be what the settings say."""
    peft = _attach(model, folder, trainable=True)
    lora = peft.peft_config["default"]
    saved = {
        "rank": lora.r,
        "alpha": lora.lora_alpha,
        "dropout": lora.lora_dropout,
        "rslora": lora.use_rslora,
        "dora": lora.use_dora,
    }
    for name, value in saved.items():
        if value != getattr(settings, name):
            raise ConfigError(
                f"the adapter in {folder} has {name}={value}, not {getattr(settings, name)}: "
                f"set adapter.{name}={value} to go on with it"
            )
    return in_precision(Adapter(peft, starts_as_base), dtype)


def merge_adapter(model: Any, folder: pathlib.Path) -> Any:
    """The model with the adapter in `folder` added into its weights: a plain model again."""
    return _attach(model, folder, trainable=False).merge_and_unload()


def is_adapter_folder(source: str | pathlib.Path) -> bool:
    return (pathlib.Path(source) / CONFIG).is_file()


def base_model_of(folder: str | pathlib.Path) -> str:
    """The base model of an adapter folder: a folder or a hub id."""
    path = pathlib.Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind, base = config["peft_type"], config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read as an adapter's config: {error}") from error
    if kind != "LORA":
        raise ModelError(f"{folder} holds an adapter of kind {kind}; only LORA is known")
    if not isinstance(base, str) or not base:
        raise ModelError(f"{path} does not name its model: set base_model_name_or_path in it")
    return base


def _attach(model: Any, folder: pathlib.Path, *, trainable: bool) -> Any:
    from peft import PeftModel

    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}: other formats are not read")
    device = str(next(model.parameters()).device)
    try:
        names = [name for name, _ in model.named_modules()]
        check_adapter(folder, CONFIG, WEIGHTS, names)
        return PeftModel.from_pretrained(
            model, folder, is_trainable=trainable, autocast_adapter_dtype=False, torch_device=device
        )
    except ModelError:
        raise
    except (ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"the adapter in {folder} does not fit its model: {reason}") from error


def in_precision(adapter: Adapter, dtype: torch.dtype) -> Adapter:
    """On a quantised model PEFT makes fp32 adapters; ours have the precision it computes in."""
    for weight in adapter.weights().values():
        weight.data = weight.data.to(dtype)
    return adapter


def _linear(model: Any) -> list[str]:
    """The names that `adapter.targets` may hold. GPT-2 keeps its linear layers transposed."""
    head = model.get_output_embeddings()
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    return sorted({n.rpartition(".")[2] for n in linear if model.get_submodule(n) is not head})


def _same_layers(model: Any, targets: str | Sequence[str]) -> str:
    """What to write in place of the names that Llama's family has for the same layers."""
    present = _linear(model)
    alike = [
        name
        for wanted in ([targets] if isinstance(targets, str) else targets)
        for name in SAME_LAYERS.get(wanted, ())
        if name in present
    ]
    return f". Use adapter.targets=[{', '.join(dict.fromkeys(alike))}]" if alike else ""
