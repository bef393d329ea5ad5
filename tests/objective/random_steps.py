"""Random optimizer steps for the tests: ragged answers, and the same answers as padded tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from groupwise.batch import Batch, Denominator
from groupwise.objective import loss as package
from groupwise.objective.loss import Metrics
from groupwise.objective.objective import Objective
from plain_reference import Answer

MAX_TOKENS = 11


@dataclass(frozen=True)
class Tokens:
    """A batch and what a pass of the policy gives for it, side by side."""

    logprobs_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    sampler_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    entropies_BT: Tensor | None = None
    keep_BT: Tensor | None = None


def policy_loss(
    tokens: Tokens, objective: Objective, denominator: Denominator, entropy_weight: float = 0.0
) -> tuple[Tensor, Metrics]:
    """The package's loss of these tokens."""
    keep_BT = tokens.keep_BT
    batch = Batch(
        mask_BT=tokens.mask_BT,
        advantages_BT=tokens.advantages_BT,
        denominator=denominator,
        sampler_logprobs_BT=tokens.sampler_logprobs_BT,
        old_logprobs_BT=tokens.old_logprobs_BT,
        ref_logprobs_BT=tokens.ref_logprobs_BT,
        old_entropies_BT=None if keep_BT is None else keep_BT.float(),
        entropy_threshold=None if keep_BT is None else 0.5,
    )
    return package.policy_loss(
        tokens.logprobs_BT, tokens.entropies_BT, batch, objective, entropy_weight
    )


@dataclass(frozen=True)
class Step:
    """A whole optimizer step as one micro-batch, float64; log-probs and entropies require grad."""

    tokens: Tokens

    def without(self, *names: str) -> "Step":
        return self.having(**dict.fromkeys(names))

    def having(self, **fields: Tensor | None) -> "Step":
        return Step(replace(self.tokens, **fields))

    @property
    def denominator(self) -> Denominator:
        mask, keep = self.tokens.mask_BT, self.tokens.keep_BT
        return Denominator(
            answers=len(mask),
            tokens=int(mask.sum()),
            max_tokens=MAX_TOKENS,
            kept_tokens=None if keep is None else int((mask & keep).sum()),
        )

    def cast(self, dtype: torch.dtype) -> Tokens:
        fields = {
            name: value.detach().to(dtype)
            for name, value in vars(self.tokens).items()
            if value is not None and value.dtype != torch.bool
        }
        for leaf in {"logprobs_BT", "entropies_BT"} & set(fields):
            fields[leaf].requires_grad_()
        return replace(self.tokens, **fields)

    def answers(self) -> list[Answer]:
        """As ragged lists, whose scalars are views of this step's leaves."""
        x = self.tokens
        rows = []
        for b, mask_T in enumerate(x.mask_BT):
            at = [t for t in range(len(mask_T)) if mask_T[t]]

            def numbers(values: Tensor | None, b: int = b, at: list[int] = at) -> list | None:
                return None if values is None else [values[b, t].item() for t in at]

            spread = x.advantages_BT.expand_as(x.logprobs_BT)
            rows.append(
                Answer(
                    logprobs=[x.logprobs_BT[b, t] for t in at],
                    advantages=numbers(spread) or [],
                    old=numbers(x.old_logprobs_BT),
                    sampler=numbers(x.sampler_logprobs_BT),
                    ref=numbers(x.ref_logprobs_BT),
                    entropies=[] if x.entropies_BT is None else [x.entropies_BT[b, t] for t in at],
                    keep=numbers(x.keep_BT),
                )
            )
        return rows


def objective(**settings: Any) -> Objective:
    return Objective.model_validate(settings)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """TRL rounds some constants (SAPO's 1.05, a deviation's n / (n - 1)) to the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_step(seed: int, B: int = 6, T: int = 5, by_token: bool = False) -> Step:
    """Answers of different lengths, one of them empty, one with a hole (a tool's reply)."""
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float, *shape: int) -> Tensor:
        return scale * torch.randn(*(shape or (B, T)), generator=g, dtype=torch.float64)

    lengths_B = torch.randint(1, T + 1, (B,), generator=g)
    lengths_B[0], lengths_B[-1] = T, 0
    mask_BT = torch.arange(T) < lengths_B[:, None]
    mask_BT[0, 2] = False
    logprobs_BT = -normal(1.0).abs() - 0.1
    return Step(
        Tokens(
            logprobs_BT=logprobs_BT.clone().requires_grad_(),
            mask_BT=mask_BT,
            advantages_BT=normal(1.0) if by_token else normal(1.0, B, 1),
            old_logprobs_BT=logprobs_BT + normal(0.35),
            sampler_logprobs_BT=logprobs_BT + normal(0.5),
            ref_logprobs_BT=logprobs_BT + normal(0.4),
            entropies_BT=normal(1.0).abs().requires_grad_(),
            keep_BT=torch.rand(B, T, generator=g) < 0.6,
        )
    )


def gradients(loss: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Of the loss with respect to log-probs and entropies (0 where it does not depend on them)."""
    leaves = [tokens.logprobs_BT, tokens.entropies_BT]
    zeros = torch.zeros_like(tokens.logprobs_BT)
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    out = [zeros if leaf is None or (grad := next(found)) is None else grad for leaf in leaves]
    return out[0], out[1]
