"""A policy: a causal language model, its tokenizer, and how to run it.

`body` and `head` split the model before its vocabulary projection, so that logits are never held
whole (objective/logprobs.py). Any Hugging Face causal model loads; one whose logits are not
head(body(x)) is run as a whole, which is always right and costs more memory.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from groupwise.errors import ModelError
from groupwise.policy.prompts import eos_ids
from groupwise.policy.resolve import resolve_model

log = logging.getLogger("groupwise")

Layout = Literal["shared_prefix", "padded"]


@dataclass(frozen=True)
class Policy:
    """model(tokens).logits == head(body(tokens)).

    `layout` is how batches are laid out for it; `flex` says that training uses flex attention.
    """

    model: Any
    tokenizer: Any
    body: Callable[..., Tensor]
    head: Callable[[Tensor], Tensor]
    eos_ids: tuple[int, ...]
    layout: Layout = "padded"
    flex: bool = False

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

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
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


def load_policy(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    layout: str = "auto",
    gradient_checkpointing: bool = False,
) -> Policy:
    """Load `tiny`, `smollm2`, a hub id or a folder."""
    source = resolve_model(name)
    disable_progress_bar()  # it would draw over our own
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"cannot load model {name!r}: {reason}\n"
            "use `tiny`, `smollm2`, a Hugging Face id that this machine can reach, or a folder"
        ) from error
    model.to(device)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return make_policy(model, tokenizer, layout)


def make_policy(model: Any, tokenizer: Any, layout: str = "auto") -> Policy:
    """Wrap a model already in memory."""
    model.eval()
    body, head = split_head(model)
    policy = Policy(model, tokenizer, body, head, eos_ids(model, tokenizer))
    if layout == "padded":
        return policy
    from groupwise.policy.forward import flex_problem, shared_prefix_problem

    problem = shared_prefix_problem(policy)
    if problem is None:
        flex = flex_problem(policy) is None
        return replace(policy, layout="shared_prefix", flex=flex)
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
