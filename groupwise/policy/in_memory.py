"""A model that is in memory already, in place of one that `model:` names.

Training begins with the object itself and changes its weights, as a Trainer of transformers does.
A run that goes on reads its weights from the checkpoint; the object is then what it started from,
and what a frozen reference is made of. Of a PEFT model the adapter is trained, and going on puts
the checkpoint's weights into it.
"""

import copy
import hashlib
import logging
import pathlib
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedModel

from groupwise.config import AdapterSettings
from groupwise.errors import ModelError, type_name
from groupwise.policy.adapters import WEIGHTS, Adapter
from groupwise.policy.pretrained import from_pretrained

PREFIX = "in-memory:"
"""What `model` begins with in the config of such a run."""
HASHED_VALUES = 256

log = logging.getLogger("groupwise")

_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""A model keeps the name that it had before training changed it."""


@dataclass(frozen=True)
class ModelInMemory:
    """`model` is a PreTrainedModel or a PeftModel around one."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def is_peft(self) -> bool:
        return not isinstance(self.model, PreTrainedModel)

    @property
    def plain(self) -> PreTrainedModel:
        """The transformers model, with PEFT's layers inside it where there are any."""
        return self.model.get_base_model() if self.is_peft else self.model

    @property
    def adapter_settings(self) -> AdapterSettings | None:
        """Settings that describe the PEFT model's adapter."""
        if not self.is_peft:
            return None
        lora = self.model.peft_config[self.model.active_adapter]
        targets = lora.target_modules
        return AdapterSettings(
            rank=lora.r,
            alpha=lora.lora_alpha,
            dropout=lora.lora_dropout,
            targets="all-linear" if isinstance(targets, str) else tuple(sorted(targets)),
            rslora=lora.use_rslora,
            dora=lora.use_dora,
        )

    def adapter(self) -> Adapter | None:
        if not self.is_peft:
            return None
        # LoRA's second half is zero until it is trained: switched off, it is then the same model.
        second = [w for n, w in self.plain.named_parameters() if "lora_B" in n]
        return Adapter(self.model, starts_as_base=not any(bool(w.any()) for w in second))

    def with_adapter_of(self, folder: pathlib.Path) -> None:
        """Put a checkpoint's adapter into the PEFT model."""
        from peft import set_peft_model_state_dict

        result = set_peft_model_state_dict(self.model, load_file(folder / WEIGHTS))
        if result.unexpected_keys:
            raise ModelError(
                f"the adapter in {folder} does not fit the model that was given: it has "
                f"{result.unexpected_keys[0]}"
            )

    def copied(self) -> "ModelInMemory":
        return replace(self, model=copy.deepcopy(self.model))


def model_in_memory(model: Any, tokenizer: Any = None) -> ModelInMemory:
    """What was given as `model=` and `tokenizer=`, or an error that says what may be."""
    is_peft = hasattr(model, "peft_config") and hasattr(model, "get_base_model")
    base = model.get_base_model() if is_peft else model
    if not isinstance(base, PreTrainedModel) or not hasattr(base, "generate"):
        raise ModelError(
            "model= takes a causal language model of transformers (AutoModelForCausalLM), a PEFT "
            f"model around one, or a name, folder or hub id; not {type_name(model)}"
        )
    if is_peft and model.peft_config[model.active_adapter].peft_type != "LORA":
        raise ModelError("of PEFT's adapters only LoRA can be trained: give a model with a LoRA")
    if tokenizer is None:
        tokenizer = _tokenizer_of(base)
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise ModelError(
            f"tokenizer= takes a tokenizer of transformers, not {type_name(tokenizer)}"
        )
    return ModelInMemory(model, tokenizer, _names.setdefault(model, _name_of(base)))


def _tokenizer_of(model: PreTrainedModel) -> Any:
    source = model.config.name_or_path
    try:
        if source:
            return from_pretrained(AutoTokenizer, source)
    except (OSError, ValueError):
        log.debug("no tokenizer at %s", source)
    raise ModelError("the model does not tell where its tokenizer is: give tokenizer= too")


@torch.no_grad()
def _name_of(model: PreTrainedModel) -> str:
    """in-memory:SmolLM2-135M-1f0c59d2, by some values of every weight: equal models share it."""
    digest = hashlib.blake2b(digest_size=4)
    for name, weight in model.named_parameters():
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // HASHED_VALUES)]
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(some.float().cpu().contiguous().numpy().tobytes())
    called = pathlib.PurePath(model.config.name_or_path or type(model).__name__).name
    return f"{PREFIX}{called}-{digest.hexdigest()}"
