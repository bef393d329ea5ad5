"""Settings that work and are seldom meant, in TRL's words."""

import logging
from typing import Any

from groupwise.trl.config import GRPOConfig

log = logging.getLogger("groupwise")


def warn_of_odd_settings(args: GRPOConfig) -> None:
    level, loss = args.importance_sampling_level, args.loss_type
    if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
        log.warning(
            "importance_sampling_level='sequence' with loss_type=%r weights each sequence by its "
            "completion length; GSPO is loss_type='grpo'",
            loss,
        )
    if loss == "luspo" and level != "sequence":
        log.warning("loss_type='luspo' is meant for importance_sampling_level='sequence'")


def warn_of_router_loss(args: GRPOConfig, model: Any) -> None:
    text = model.config.get_text_config()
    declared = getattr(text, "router_aux_loss_coef", 0.0)
    if args.router_aux_loss_coef is None and declared and hasattr(text, "output_router_logits"):
        log.warning(
            "the load-balancing loss of this mixture of experts (router_aux_loss_coef=%s in its "
            "config) is not added, as TRL would: set router_aux_loss_coef=0.0 if that is meant",
            declared,
        )
