"""Our surrogates in TRL 1.16's words. One that is not here has no counterpart there."""

FIELDS = {
    "clip": {"clip_low": "epsilon", "clip_high": "epsilon_high", "clip_max": "delta"},
    "cispo": {"cispo_max": "epsilon_high"},
    "sapo": {
        "sapo_tau_positive": "sapo_temperature_pos",
        "sapo_tau_negative": "sapo_temperature_neg",
    },
    "vespo": {
        "vespo_k_positive": "vespo_k_pos",
        "vespo_lambda_positive": "vespo_lambda_pos",
        "vespo_k_negative": "vespo_k_neg",
        "vespo_lambda_negative": "vespo_lambda_neg",
    },
}
"""Surrogate -> its settings -> GRPOConfig's names for them."""

LOSS_TYPES = {
    ("clip", "sequence_mean"): "grpo",
    ("clip", "token_mean"): "dapo",
    ("clip", "fixed_length"): "dr_grpo",
    ("clip", "sequence_sum"): "luspo",
    ("clip", "microbatch_token_mean"): "bnpo",
    ("cispo", "token_mean"): "cispo",
    ("sapo", "sequence_mean"): "sapo",
    ("vespo", "token_mean"): "vespo",
}
"""(surrogate, aggregate) -> TRL's loss_type."""
