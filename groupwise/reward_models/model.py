"""A reward model: weights, tokenizer, and which of the three kinds it is.

scalar      any sequence-classification model. One label: the score is its logit. Several: the
            log-odds of one of them against the rest (the last, unless `label` names another).
cot         two heads and the features of the chain of thought (groupwise.reward_models.cot_model).
preference  a sequence-classification model with one label that reads a prompt and two answers; its
            logit is the log-odds that the first is better. `config.reward_kind` says so.
"""

import pathlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
)
from transformers.utils import logging

from groupwise.errors import ModelError
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.resolve import resolve_model
from groupwise.reward_models.cot_model import CotRewardConfig, CotRewardModel

log = logging.get_logger("groupwise")

Kind = Literal["scalar", "cot", "preference"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TINY_ENCODER = "tiny-encoder"
STAND_INS: dict[str, Kind] = {
    "tiny-scalar": "scalar",
    "tiny-cot": "cot",
    "tiny-preference": "preference",
}
"""Untrained models with opinions, to try a recipe out before its reward model exists."""
OPINIONATED: dict[Kind, tuple[int, int]] = {"scalar": (4, 0), "cot": (4, 0), "preference": (16, 1)}
"""What their initial weights are multiplied by, and their seed. As they are, every answer is alike;
two answers that change places are even more so, and most seeds call that a tie."""
MAX_TOKENS = 512
"""What a model reads unless it or the recipe says otherwise."""


@dataclass(frozen=True)
class RewardModel:
    kind: Kind
    model: Any
    tokenizer: Any
    max_tokens: int
    label: int = 0
    """Which of several labels a scalar model's score is about."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def pad_id(self) -> int:
        return self.model.config.pad_token_id


def load_reward_model(
    name: str,
    device: torch.device | str,
    *,
    max_tokens: int | None = None,
    label: str | int | None = None,
) -> RewardModel:
    """One that was fitted here, or any sequence-classification model: a folder or a hub id."""
    if name in STAND_INS:
        return _stand_in(STAND_INS[name], device, max_tokens)
    source = resolve_model(name)
    try:
        tokenizer = from_pretrained(AutoTokenizer, source)
        # A half-precision copy ranks close answers by chance; only a GPU gains by it.
        dtype = "auto" if torch.device(device).type == "cuda" else torch.float32
        with _quietly():
            model, info = from_pretrained(
                AutoModelForSequenceClassification, source, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(name, error) from error
    if info["missing_keys"]:
        raise ModelError(
            f"{name} is no reward model: it has no weights for {min(info['missing_keys'])}. "
            f"Fit one on it first: groupwise reward fit DATA --base {name} --out FOLDER"
        )
    kind = kind_of(model.config)
    model.to(device).eval()
    limit = token_limit(model, tokenizer, max_tokens)
    return RewardModel(kind, model, with_padding(tokenizer, model), limit, _label(model, label))


def new_reward_model(
    kind: Kind, base: str, *, tokenizer: str, max_tokens: int | None, seed: int
) -> RewardModel:
    """One to be fitted: the weights of `base` under new heads, all of it float32 on the CPU.

    `base` is a hub id, a folder, or `tiny-encoder`: a small BERT from scratch that reads with the
    tokenizer of the model `tokenizer`.
    """
    from_scratch = base == TINY_ENCODER
    source = resolve_model(tokenizer if from_scratch else base)
    with torch.random.fork_rng(devices=[]), _quietly():
        torch.manual_seed(seed)
        try:
            reader = from_pretrained(AutoTokenizer, source)
            config: Any = tiny_encoder_config(reader) if from_scratch else None
            model = _with_heads(kind, source, config)
        except (OSError, ValueError, KeyError) as error:
            raise _cannot_load(base, error) from error
    reader = with_padding(reader, model)
    if kind != "cot":
        model.config.reward_kind = kind
    limit = token_limit(model, reader, max_tokens)
    model.config.reward_max_tokens = limit
    return RewardModel(kind, model, reader, limit)


def _stand_in(kind: Kind, device: torch.device | str, max_tokens: int | None) -> RewardModel:
    log.warning("the reward model is a stand-in with random weights: its scores mean nothing")
    factor, seed = OPINIONATED[kind]
    made = new_reward_model(kind, TINY_ENCODER, tokenizer="tiny", max_tokens=max_tokens, seed=seed)
    with torch.no_grad():
        for weight in made.model.parameters():
            if weight.ndim > 1:
                weight.mul_(factor)
    made.model.to(device).eval()
    return made


def tiny_encoder_config(tokenizer: Any) -> BertConfig:
    """A tenth of a million weights beside its embeddings: quick on one core."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=MAX_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def save_reward_model(reward_model: RewardModel, folder: pathlib.Path) -> None:
    """A Hugging Face folder: config.json, model.safetensors, the tokenizer."""
    reward_model.model.save_pretrained(folder)
    reward_model.tokenizer.save_pretrained(folder)


def kind_of(config: Any) -> Kind:
    if isinstance(config, CotRewardConfig):
        return "cot"
    kind = getattr(config, "reward_kind", "scalar")
    if kind not in KINDS:
        raise ModelError(f"this reward model says it is of kind {kind!r}; known are {KINDS}")
    return kind


def token_limit(model: Any, tokenizer: Any, wanted: int | None) -> int:
    """`wanted`, or what the model was fitted with, never more than it has positions for."""
    config = model.config.backbone_config() if isinstance(model, CotRewardModel) else model.config
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    known = [n for n in (positions, tokenizer.model_max_length) if isinstance(n, int) and n > 0]
    most = min(known, default=MAX_TOKENS)
    if wanted is not None and not 16 <= wanted <= most:
        raise ModelError(f"max_tokens is {wanted}; this reward model reads from 16 to {most}")
    return wanted or min(getattr(model.config, "reward_max_tokens", MAX_TOKENS), most)


def with_padding(tokenizer: Any, model: Any) -> Any:
    """Give both of them a padding token where they have none: batches need one."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.sep_token or tokenizer.cls_token
    if tokenizer.pad_token_id is None:
        raise ModelError("the reward model's tokenizer has no token to pad with")
    model.config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


@contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars, and without a report of missing heads: we report them ourselves."""
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _with_heads(kind: Kind, source: str, config: Any) -> Any:
    if kind == "cot":
        if config is not None:
            backbone = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
        else:
            backbone = from_pretrained(AutoModel, source, dtype=torch.float32)
        return CotRewardModel(CotRewardConfig(backbone=backbone.config.to_dict()), backbone)
    if config is not None:
        config.num_labels = 1
        return AutoModelForSequenceClassification.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    config = from_pretrained(AutoConfig, source, num_labels=1)
    return from_pretrained(
        AutoModelForSequenceClassification,
        source,
        config=config,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
    )


def _label(model: Any, wanted: str | int | None) -> int:
    names: Sequence[str] = [name for _, name in sorted(model.config.id2label.items())]
    if isinstance(model, CotRewardModel) or len(names) == 1:
        if wanted is not None:
            raise ModelError("this reward model has one score, so there is no label to choose")
        return 0
    if wanted is None:
        return len(names) - 1
    if wanted in names:
        return names.index(str(wanted))
    if isinstance(wanted, int) and 0 <= wanted < len(names):
        return wanted
    raise ModelError(
        f"this reward model has no label {wanted!r}; set label to one of {', '.join(names)}, "
        f"or to a number from 0 to {len(names) - 1}"
    )


def _cannot_load(name: str, error: Exception) -> ModelError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"cannot load reward model {name!r}: {reason}\n"
        "use a folder that `groupwise reward fit` wrote, or a sequence-classification model: a "
        "folder, or a Hugging Face id that this machine can reach"
    )
