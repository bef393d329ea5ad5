"""The tolerance within which two log-probs count as equal: what rounding does to this model here.

The same sum in another order comes out slightly different: by how much depends on a model's depth,
its activations, and the machine's matrix products. So the model is compared with itself.
"""

import torch

from groupwise.policy.policy import Policy

FULL = 1e-3
TIMES = 4
"""Our log-probs may differ by this many times the gap between the model's own two passes."""
MOST = 10
"""But by no more than this many times the usual tolerance: a larger gap is an error."""


def is_rounding(policy: Policy, gap: float, *, half: float) -> bool:
    """Whether a gap between log-probs can be rounding. The model's own rounding is only measured
    when the gap is above the usual tolerance."""
    return gap <= _usual(policy, half) or gap <= logprob_tolerance(policy, half=half)


def logprob_tolerance(policy: Policy, *, half: float) -> float:
    """The usual one, or more for a noisier model."""
    usual = _usual(policy, half)
    return max(usual, min(TIMES * rounding_noise(policy), MOST * usual))


def _usual(policy: Policy, half: float) -> float:
    """FULL in float32, `half` where activations are rounded."""
    return half if policy.rounds else FULL


@torch.no_grad()
def rounding_noise(policy: Policy) -> float:
    """The largest gap between log-probs of a few tokens in one pass and one by one, both by the
    model's own code. 0 for a model that keeps no KV cache."""
    tokens = torch.tensor(
        [[token % policy.vocab for token in range(3, 12)]], device=policy.device, dtype=torch.long
    )
    try:
        cache, rows = None, []
        for position in range(tokens.shape[1]):
            output = policy.model(
                input_ids=tokens[:, position : position + 1], past_key_values=cache, use_cache=True
            )
            cache = output.past_key_values
            rows.append(output.logits[0, -1])
        at_once = policy.model(input_ids=tokens, use_cache=False).logits[0]
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return 0.0
    following = tokens[0, 1:, None]
    one_by_one = torch.stack(rows)[:-1].float().log_softmax(-1).gather(-1, following)
    whole = at_once[:-1].float().log_softmax(-1).gather(-1, following)
    return (one_by_one - whole).abs().max().item()
