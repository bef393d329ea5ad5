"""A reward model with two heads: how good the answer is, and how good the reasoning.

Both heads read the text as any encoder or decoder sees it (the mean over its tokens) joined with
the features of the chain of thought (groupwise.rewards.cot): steps, calculations that are right and
wrong, reasoning words, length. The score is a weighted sum of the two probabilities.

It is a Hugging Face model: `save_pretrained` writes config.json and safetensors, and once this
module is imported the Auto classes know its type.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from groupwise.rewards.cot import cot_features

FEATURES = len(cot_features("").vector())


class CotRewardConfig(PreTrainedConfig):
    model_type = "groupwise_cot_reward"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        answer_weight: float = 1.0,
        reasoning_weight: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.backbone = backbone or {}
        self.answer_weight = answer_weight
        self.reasoning_weight = reasoning_weight
        super().__init__(**{"num_labels": 2, **kwargs})

    def backbone_config(self) -> PreTrainedConfig:
        settings = dict(self.backbone)
        return AutoConfig.for_model(settings.pop("model_type"), **settings)


class CotRewardModel(PreTrainedModel):
    config_class = CotRewardConfig
    base_model_prefix = "backbone"
    _supports_sdpa = True

    def __init__(self, config: CotRewardConfig, backbone: nn.Module | None = None) -> None:
        super().__init__(config)
        inner = config.backbone_config()
        self.backbone = (
            backbone
            if backbone is not None
            else AutoModel.from_config(inner, trust_remote_code=False)
        )
        width = inner.get_text_config().hidden_size + FEATURES
        self.answer = nn.Linear(width, 1)
        self.reasoning = nn.Linear(width, 1)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor, **inputs: Any
    ) -> SequenceClassifierOutput:
        """Logits (B, 2): answer quality, reasoning quality. `features`: (B, FEATURES)."""
        hidden_BTH = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, **inputs
        ).last_hidden_state
        visible_BT1 = attention_mask[..., None].to(hidden_BTH.dtype)
        mean_BH = (hidden_BTH * visible_BT1).sum(1) / visible_BT1.sum(1)
        joined = torch.cat([mean_BH, features.to(mean_BH)], dim=-1)
        return SequenceClassifierOutput(
            logits=torch.cat([self.answer(joined), self.reasoning(joined)], dim=-1)  # pyright: ignore[reportArgumentType]
        )

    def score(self, logits_B2: Tensor) -> Tensor:
        """The two probabilities, weighted as the config says."""
        answer, reasoning = logits_B2.sigmoid().unbind(-1)
        return self.config.answer_weight * answer + self.config.reasoning_weight * reasoning


AutoConfig.register(CotRewardConfig.model_type, CotRewardConfig, exist_ok=True)
AutoModelForSequenceClassification.register(CotRewardConfig, CotRewardModel, exist_ok=True)
