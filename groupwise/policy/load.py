"""Load a policy: any Hugging Face causal model, from a name, a folder or the hub.

A folder with an adapter (PEFT's format) is a model too: its base model, with the adapter on top
where the settings ask for one, else merged into its weights.
"""

import logging
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from groupwise.compat.bitsandbytes import keep_4_bit_layout
from groupwise.compat.transformers import is_adapter_checkpoint
from groupwise.config import AdapterSettings
from groupwise.errors import GroupwiseError, ModelError
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.adapters import (
    Adapter,
    add_adapter,
    base_model_of,
    is_adapter_folder,
    load_adapter,
    merge_adapter,
)
from groupwise.policy.forward import shared_prefix_problem
from groupwise.policy.in_memory import ModelInMemory
from groupwise.policy.policy import Policy, split_head
from groupwise.policy.pretrained import described, from_pretrained
from groupwise.policy.prompts import eos_ids
from groupwise.policy.quantization import quantization_config
from groupwise.policy.resolve import resolve_model

log = logging.getLogger("groupwise")


def pick_device(wanted: str) -> torch.device:
    """CUDA, else Apple MPS, else CPU; or what was asked for, if it is there."""
    devices = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next((kind for kind, available in devices.items() if available), "cpu"))
    if not devices.get(wanted, True):
        raise ModelError(
            f"device {wanted} was asked for and is not available; use device=auto or cpu"
        )
    return torch.device(wanted)


def pick_dtype(precision: str, device: torch.device) -> torch.dtype:
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def load_policy(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    layout: str = "auto",
    gradient_checkpointing: bool | Literal["offload"] = False,
    adapter: AdapterSettings | None = None,
    quantization: str | None = None,
    weights: str | None = None,
    seed: int = 0,
) -> Policy:
    """Load `tiny`, `smollm2`, a hub id or a folder; `weights`: a folder that it goes on from."""
    source = resolve_model(weights or name)
    adapter_folder = pathlib.Path(source) if is_adapter_folder(source) else None
    base = source if adapter_folder is None else resolve_model(base_model_of(adapter_folder))
    tokenizer, model = _from_pretrained(name, source, base, device, dtype, quantization)
    with _usable(name):
        lora = None
        if adapter is None and adapter_folder is not None:
            model = merge_adapter(model, adapter_folder)
        elif adapter is not None and adapter_folder is None:
            lora = add_adapter(model, adapter, dtype, seed)
        elif adapter is not None and adapter_folder is not None:
            fresh = not is_adapter_folder(resolve_model(name))
            lora = load_adapter(model, adapter_folder, adapter, dtype, starts_as_base=fresh)
        _without_dropout(model)
        return make_policy(model, tokenizer, layout, lora, gradient_checkpointing)


@contextmanager
def _usable(name: str) -> Iterator[None]:
    """A folder's settings may load and still not work: that is the folder's fault."""
    try:
        yield
    except (GroupwiseError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(f"model {name!r} cannot be used: {described(error)}") from error


def policy_of(
    given: ModelInMemory,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    layout: str = "auto",
    gradient_checkpointing: bool | Literal["offload"] = False,
    adapter: AdapterSettings | None = None,
    weights: str | None = None,
    seed: int = 0,
) -> Policy:
    """The policy of a model in memory, as `load_policy` makes one of a model with a name.

    `dtype` None: the model's own. `weights`: an adapter's folder that it goes on from.
    """
    model: Any = given.plain
    if not getattr(model, "is_quantized", False):
        model.to(device=device, dtype=dtype)
    lora = given.adapter()
    if weights is not None and given.is_peft:
        given.with_adapter_of(pathlib.Path(weights))
    elif weights is not None:
        assert adapter is not None, "without an adapter, a checkpoint is a model of its own"
        folder = pathlib.Path(weights)
        lora = load_adapter(model, folder, adapter, model.dtype, starts_as_base=True)
    elif adapter is not None and not given.is_peft:
        lora = add_adapter(model, adapter, model.dtype, seed)
    return make_policy(model, given.tokenizer, layout, lora, gradient_checkpointing)


def _from_pretrained(
    name: str,
    source: str,
    base: str,
    device: torch.device,
    dtype: torch.dtype,
    quantization: str | None,
) -> tuple[Any, Any]:
    """The tokenizer of `source` (an adapter may come without one) and the model of `base`."""
    disable_progress_bar()  # it would draw over our own
    options: dict[str, Any] = {}
    bare = source != base and not (pathlib.Path(source) / "tokenizer_config.json").is_file()
    try:
        config = quantization_config(quantization, dtype, base, device)
        if config is not None:
            options = {"quantization_config": config, "device_map": {"": device}}
        tokenizer = from_pretrained(AutoTokenizer, base if bare else source)
        model: Any = from_pretrained(AutoModelForCausalLM, base, dtype=dtype, **options)
    except GroupwiseError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        here = pathlib.Path(name).parent
        missing = "there is no such folder. " if here.name and here.is_dir() else ""
        raise ModelError(
            f"cannot load model {name!r}: {missing}{reason}\n"
            "use `tiny`, `smollm2`, a Hugging Face id that this machine can reach, or a folder"
        ) from error
    if is_adapter_checkpoint(model):
        raise ModelError(f"{name!r} on the hub is an adapter: download it and name its folder")
    if not options:
        model.to(device)
    return tokenizer, model


def _without_dropout(model: Any) -> None:
    """Answers are sampled without dropout, so learning with it would learn from another policy
    (GPT-2 has 0.1 everywhere). An adapter's own is what its settings say."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and "lora_dropout" not in name:
            module.p = 0.0


def _drops_attention(model: Any) -> bool:
    """Of a model in memory, whose dropout is its owner's."""
    dropouts = [(n, m.p) for n, m in model.named_modules() if isinstance(m, nn.Dropout)]
    return any("att" in name.rpartition(".")[2] and share for name, share in dropouts)


def make_policy(
    model: Any,
    tokenizer: Any,
    layout: str = "auto",
    adapter: Adapter | None = None,
    gradient_checkpointing: bool | Literal["offload"] = False,
) -> Policy:
    """Wrap a model already in memory (with the adapter inside it, if any)."""
    keep_4_bit_layout(model)
    if gradient_checkpointing:
        checkpoint_activations(model, offload=gradient_checkpointing == "offload")
    model.eval()
    body, head = split_head(model)
    policy = Policy(model, tokenizer, body, head, eos_ids(model, tokenizer), adapter=adapter)
    if layout == "padded":
        return policy
    dropout = "it has attention dropout" if _drops_attention(model) else None
    problem = dropout or shared_prefix_problem(policy)
    if problem is None:
        return replace(policy, layout="shared_prefix")
    if layout == "shared_prefix":
        raise ModelError(f"layout shared_prefix cannot be used: {problem}; use batch.layout=padded")
    log.warning("prompts are not shared in training: %s", problem)
    return policy
