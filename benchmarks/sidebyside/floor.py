"""How fast a step could be at best on this machine: work that no implementation can avoid.

Generation reads all weights once for each token of the longest answer (all answers at once), and
the cache: a prompt's part once per group, an answer's own part for itself; or it is bound by the
FLOPs of one pass over every prompt (once per group) and every sampled token. The update is the
FLOPs of one forward and backward pass over the same tokens (6 per weight and token, the head only
at sampled tokens), then AdamW: read weight, gradient and two moments, write three of them, in fp32.
Prompts count once per group. Under an adapter a third of the update's FLOPs, the gradients of the
frozen weights, and AdamW fall away. Nothing else is counted, so nobody reaches this.
"""

from groupwise.check.peak import Peak
from sidebyside.settings import Setting, Size


def floor_seconds(
    setting: Setting, size: Size, peak: Peak, tokens: float, longest: int
) -> dict[str, float]:
    """Seconds for each phase. `tokens`: sampled in the step."""
    generation = _generation(setting, size, peak, tokens, longest)
    forward = _forward_flops(setting, size, tokens) / peak.flops
    update = 3 * forward + 7 * 4 * size.parameters / peak.bytes
    if setting.adapter:  # frozen weights have no gradients and no moments
        update = 2 * forward
    reference = forward if setting.beta else 0.0
    return {
        "generation": generation,
        "reference": reference,
        "update": update,
        "step": generation + reference + update,
    }


def _generation(setting: Setting, size: Size, peak: Peak, tokens: float, longest: int) -> float:
    number = size.bytes
    weights = (size.body + size.head) * number * longest
    shared = setting.prompts * setting.prompt_tokens * longest
    own = tokens * (tokens / setting.answers) / 2
    cache = (shared + own) * size.kv * number
    reading = (weights + cache) / peak.bytes
    computing = _forward_flops(setting, size, tokens) / peak.flops
    return max(reading, computing)


def _forward_flops(setting: Setting, size: Size, tokens: float) -> float:
    """2 per weight and token, and 4 per query-key pair and number of a head."""
    prompts = setting.prompts * setting.prompt_tokens
    products = 2 * size.body * (prompts + tokens) + 2 * size.head * tokens
    mean = tokens / setting.answers
    pairs = prompts * setting.prompt_tokens / 2 + tokens * (setting.prompt_tokens + mean / 2)
    return products + 4 * size.layers * size.attention * pairs
