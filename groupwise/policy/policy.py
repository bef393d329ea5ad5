"""A policy: a causal language model, its tokenizer, and how to run it.

`body` and `head` split the model before its vocabulary projection, so that logits are never held
whole (token_logprobs.py). Any Hugging Face causal model can be one; a model whose logits are
not head(body(x)) is run as a whole, which is always right and costs more memory.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from groupwise.policy.adapters import Adapter

log = logging.getLogger("groupwise")

Layout = Literal["shared_prefix", "padded"]


def _call(forward: Callable[[], Any]) -> Any:
    return forward()


def _unchanged(passes: int) -> int:
    return passes


@dataclass(frozen=True)
class Policy:
    """model(tokens).logits == head(body(tokens)).

    `layout` is how batches are laid out for it.
    With an `adapter` only its weights, which are inside the model, are trained.
    Forward passes of a sharded model (FSDP2, ZeRO) go through `run`, which gathers weights on the
    way. All ranks must make equally many: where one has n to make, all make `passes(n)`.
    """

    model: Any
    tokenizer: Any
    body: Callable[..., Tensor]
    head: Callable[[Tensor], Tensor]
    eos_ids: tuple[int, ...]
    layout: Layout = "padded"
    adapter: Adapter | None = None
    run: Callable[[Callable[[], Any]], Any] = _call
    passes: Callable[[int], int] = _unchanged
    runs_on: torch.device | None = None
    """Where forward passes are computed, if not where the weights are."""

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
