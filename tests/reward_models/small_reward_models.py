"""Reward models that take no time to make: random weights, a real tokenizer of each sort."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from transformers import PreTrainedTokenizerFast as FastTokenizer

from groupwise.policy.resolve import TINY
from groupwise.reward_models.model import Kind, RewardModel, new_reward_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789+-=?"]


def pair_tokenizer() -> Any:
    """One token a character, and BERT's form of a pair: [CLS] a [SEP] b [SEP]."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return FastTokenizer(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=128,
    )  # fmt: skip


def chat_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY)


def bert(labels: int = 1, seed: int = 0) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=128,
    )  # fmt: skip
    config.num_labels = labels
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():  # the initial 0.02 makes every answer alike
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model.eval()


def random_reward_model(kind: Kind, seed: int = 0) -> RewardModel:
    """A tiny-encoder as it is before it is fitted, with weights large enough to have opinions."""
    made = new_reward_model(kind, "tiny-encoder", tokenizer="tiny", max_tokens=128, seed=seed)
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    made.model.eval()
    return made
