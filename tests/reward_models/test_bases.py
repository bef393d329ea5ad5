"""Reward models on the encoders and decoders that people use, in random miniature."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel

from groupwise.reward_models.examples import Examples, Scored
from groupwise.reward_models.fit import FitSettings, fit
from groupwise.reward_models.model import (
    KINDS,
    Kind,
    RewardModel,
    load_reward_model,
    new_reward_model,
    save_reward_model,
)
from groupwise.reward_models.predict import preferences, score_answers
from small_reward_models import WORDS, pair_tokenizer

SHAPE = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 130,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c"]},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "gpt_neo": {"num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]],
                "bos_token_id": 2, "eos_token_id": 3},
    "qwen2": {"num_key_value_heads": 2},
}  # fmt: skip
EXAMPLES = Examples(
    scored=tuple(
        Scored(f"{n}?", text, score, str(n))
        for n in range(4)
        for text, score in (("yes", 1.0), ("no", 0.0))
    )
)


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base") / request.param
    torch.manual_seed(0)
    config = CONFIG_MAPPING[request.param](**{**SHAPE, **FAMILIES[request.param]})
    AutoModel.from_config(config).save_pretrained(folder)
    pair_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_any_base_is_fitted_saved_and_loaded(kind: Kind, base: str, tmp_path: Path) -> None:
    made = new_reward_model(kind, base, tokenizer="tiny", max_tokens=32, seed=0)
    fitted = fit(made, EXAMPLES, EXAMPLES, FitSettings(epochs=1, batch_size=4, lr=1e-3))
    assert 0 <= fitted.best.validation.auc <= 1
    save_reward_model(made, tmp_path / "rm")
    loaded = load_reward_model(str(tmp_path / "rm"), "cpu")
    assert (loaded.kind, loaded.max_tokens) == (kind, 32)
    prompts, answers = ["7?"] * 3, ["yes", "no", "yes " * 40]

    def says(model: RewardModel, batch_size: int) -> list[float]:
        if kind == "preference":
            others = answers[1:] + answers[:1]
            return preferences(model, prompts, answers, others, batch_size=batch_size)
        return list(score_answers(model, prompts, answers, batch_size=batch_size))

    found = says(made, 3)
    assert len(set(found)) == 3
    assert says(loaded, 3) == pytest.approx(found, abs=1e-5)
    assert says(loaded, 1) == pytest.approx(found, abs=1e-4)
