"""Random models of several families, small enough for a test, and groups to train them on."""

import random
from types import SimpleNamespace
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from groupwise.policy.load import Policy, make_policy
from groupwise.types import Completion, Group, Problem

VOCAB = 61
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 5},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 5},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 5},
    "phi": {},
    "gpt_neox": {},
}

EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "head_dim": 16, "moe_intermediate_size": 32},
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "olmoe": {**EXPERTS, "num_experts": 4},
}


def tokenizer() -> Any:
    """Enough of a tokenizer for code that never reads text."""
    return SimpleNamespace(
        pad_token_id=0,
        eos_token_id=2,
        decode=lambda tokens, **_: " ".join(map(str, tokens)),
    )


def random_model(
    family: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 0, **sizes: int
) -> Any:
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[family](**{**SHAPE, **(FAMILIES | MIXTURES)[family], **sizes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # the initial 0.02 makes every answer alike
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model.to(dtype)


def random_policy(
    family: str = "llama", layout: str = "auto", dtype: torch.dtype = torch.float32, seed: int = 0
) -> Policy:
    return make_policy(random_model(family, dtype, seed), tokenizer(), layout)


def random_groups(
    count: int = 3, size: int = 4, seed: int = 0, longest: int = 9, empty: bool = False
) -> list[Group]:
    """Groups of uneven prompts and answers, with rewards and advantages."""
    rng = random.Random(seed)
    groups = []
    for index in range(count):
        prompt = tuple(rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 7)))
        completions = []
        for answer in range(size):
            length = 0 if empty and answer == 0 else rng.randint(1, longest)
            tokens = tuple(rng.randrange(3, VOCAB) for _ in range(length))
            logprobs = tuple(-rng.random() for _ in tokens)
            stop = rng.choice(("eos", "length"))
            completions.append(Completion(tokens, logprobs, stop, text=str(tokens)))
        rewards = tuple(float(rng.randint(0, 3)) for _ in range(size))
        mean = sum(rewards) / size
        groups.append(
            Group(
                Problem(f"p{index}", "?"),
                prompt,
                tuple(completions),
                {"r": rewards},
                rewards,
                tuple(r - mean for r in rewards),
            )
        )
    return groups
