"""A policy: a causal language model, its tokenizer, and how to run it.

`body` and `head` split the model before its vocabulary projection, so that logits are never held
whole (objective/logprobs.py). Any Hugging Face causal model loads; one whose logits are not
head(body(x)) is run as a whole, which is always right and costs more memory.

A folder with an adapter (PEFT's format) is a model too: the one that it belongs to, with the
adapter on top where the settings ask for one, else merged in.
"""

import logging
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from groupwise.compat.transformers import is_adapter_checkpoint
from groupwise.config import AdapterSettings
from groupwise.errors import GroupwiseError, ModelError
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.adapters import (
    Adapter,
    add_adapter,
    base_of,
    is_adapter_folder,
    load_adapter,
    merge_adapter,
)
from groupwise.policy.prompts import eos_ids
from groupwise.policy.quantization import quantization_config
from groupwise.policy.resolve import resolve_model

log = logging.getLogger("groupwise")

Layout = Literal["shared_prefix", "padded"]


def _plainly(forward: Callable[[], Any]) -> Any:
    return forward()


def _as_many(passes: int) -> int:
    return passes


@dataclass(frozen=True)
class Policy:
    """model(tokens).logits == head(body(tokens)).

    `layout` is how batches are laid out for it.
    With an `adapter` only its weights, which are inside the model, are trained.
    A model that several processes hold together runs inside `run`, which puts its weights together
    on the way, and equally often in all of them: where one has n passes to make, all make
    `passes(n)`.
    """

    model: Any
    tokenizer: Any
    body: Callable[..., Tensor]
    head: Callable[[Tensor], Tensor]
    eos_ids: tuple[int, ...]
    layout: Layout = "padded"
    adapter: Adapter | None = None
    run: Callable[[Callable[[], Any]], Any] = _plainly
    passes: Callable[[int], int] = _as_many
    runs_on: torch.device | None = None
    """Where passes are made, if not where the weights are."""

    @property
    def device(self) -> torch.device:
        return self.runs_on or next(self.model.parameters()).device

    @property
    def rounds(self) -> bool:
        """Whether the same sum in another order may come out visibly different: in half precision,
        and where activations are cut to 8 bits."""
        return self.model.dtype != torch.float32 or self.int8

    @property
    def int8(self) -> bool:
        return any(weight.dtype == torch.int8 for weight in self.model.parameters())

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return pad if pad is not None else self.eos_ids[0]

    @property
    def vocab(self) -> int:
        return self.model.config.get_text_config().vocab_size


def pick_device(wanted: str) -> torch.device:
    """CUDA, else Apple MPS, else CPU; or what was asked for, if it is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next((kind for kind, found in there.items() if found), "cpu"))
    if not there.get(wanted, True):
        raise ModelError(f"device {wanted} was asked for and is not there; use device=auto or cpu")
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
    tuned = pathlib.Path(source) if is_adapter_folder(source) else None
    base = source if tuned is None else resolve_model(base_of(tuned))
    tokenizer, model = _read(name, source, base, device, dtype, quantization)
    worn = None
    if adapter is None and tuned is not None:
        model = merge_adapter(model, tuned)
    elif adapter is not None and tuned is None:
        worn = add_adapter(model, adapter, dtype, seed)
    elif adapter is not None and tuned is not None:
        fresh = not is_adapter_folder(resolve_model(name))
        worn = load_adapter(model, tuned, adapter, dtype, starts_as_base=fresh)
    if gradient_checkpointing:
        checkpoint_activations(model, offload=gradient_checkpointing == "offload")
    return make_policy(model, tokenizer, layout, worn)


def _read(
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
        if quantization is not None:
            config = quantization_config(quantization, dtype, base, device)
            options = {"quantization_config": config, "device_map": {"": device}}
        tokenizer = AutoTokenizer.from_pretrained(base if bare else source)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, **options)
    except GroupwiseError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"cannot load model {name!r}: {reason}\n"
            "use `tiny`, `smollm2`, a Hugging Face id that this machine can reach, or a folder"
        ) from error
    if is_adapter_checkpoint(model):
        raise ModelError(f"{name!r} on the hub is an adapter: download it and name its folder")
    if quantization is None:
        model.to(device)
    return tokenizer, model


def make_policy(
    model: Any, tokenizer: Any, layout: str = "auto", adapter: Adapter | None = None
) -> Policy:
    """Wrap a model already in memory (with the adapter inside it, if any)."""
    model.eval()
    body, head = split_head(model)
    policy = Policy(model, tokenizer, body, head, eos_ids(model, tokenizer), adapter=adapter)
    if layout == "padded":
        return policy
    from groupwise.policy.forward import shared_prefix_problem

    problem = shared_prefix_problem(policy)
    if problem is None:
        return replace(policy, layout="shared_prefix")
    if layout == "shared_prefix":
        raise ModelError(f"layout shared_prefix cannot be used: {problem}; use batch.layout=padded")
    log.warning("prompts are not shared in training: %s", problem)
    return policy


def split_head(model: Any) -> tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]:
    """(body, head) with head(body(x)) equal to the model's logits, checked on a few tokens."""
    decoder, projection = model.get_decoder(), model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def body(**inputs: Any) -> Tensor:
        return decoder(**inputs, use_cache=False).last_hidden_state

    def head(hidden: Tensor) -> Tensor:
        logits = projection(hidden)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def whole(**inputs: Any) -> Tensor:
        return model(**inputs, use_cache=False).logits

    if isinstance(decoder, nn.Module) and decoder is not model and projection is not None:
        vocab = model.config.get_text_config().vocab_size
        probe = torch.arange(4, device=next(model.parameters()).device)[None] % vocab
        with torch.no_grad():
            expected, split = whole(input_ids=probe), head(body(input_ids=probe))
        if split.shape == expected.shape and torch.allclose(split, expected, atol=1e-4, rtol=1e-3):
            return body, head
    log.warning("%s is run with its whole logits in memory", type(model).__name__)
    return whole, lambda logits: logits
