"""Two formulas that TRL's trainer offers as methods, by our own objective."""

import torch
from torch import Tensor

from groupwise.objective.entropy import entropy_threshold
from groupwise.objective.ratios import off_policy_answers


class Formulas:
    def get_high_entropy_mask(self, entropies: Tensor, mask: Tensor, threshold: float) -> Tensor:
        """bool: the tokens of highest entropy; `threshold` is the share of tokens left out."""
        counted = mask.bool()
        known_K = entropies[counted].float()
        if not known_K.numel():
            return torch.zeros_like(counted)
        return counted & (entropies >= entropy_threshold(known_K, 1 - threshold))

    @staticmethod
    def get_off_policy_mask(
        advantages: Tensor,
        per_token_logps: Tensor,
        sampling_per_token_logps: Tensor,
        mask: Tensor,
        off_policy_threshold: float,
    ) -> Tensor:
        """(B, 1): 0 for answers of negative advantage that the policy has moved away from."""
        dropped = off_policy_answers(
            per_token_logps,
            sampling_per_token_logps,
            mask.bool(),
            advantages,
            off_policy_threshold,
        )
        return (~dropped).float()
