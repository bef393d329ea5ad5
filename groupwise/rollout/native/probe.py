"""Can the native engine serve this model? Try it, against the model's own forward pass."""

import torch

from groupwise.policy.attention import UnsupportedAttention, attention_interface_problem
from groupwise.policy.policy import Policy
from groupwise.policy.rounding import is_rounding
from groupwise.rollout.engine import generate
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Request, Sampling


@torch.no_grad()
def native_engine_problem(policy: Policy) -> str | None:
    """Why it cannot; None when it can."""
    if (problem := attention_interface_problem(policy.model)) is not None:
        return problem
    prompt = tuple(token % policy.vocab for token in range(3, 9))
    requests = [Request(prompt, (1, 2)), Request(prompt[:2], (3,))]
    engine = NativeEngine(policy, 4, graphs=False)
    try:
        groups = generate(engine, requests, Sampling(max_tokens=5))
    except UnsupportedAttention as reason:
        return str(reason)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        return f"its forward pass refuses our attention ({str(error).splitlines()[0]})"
    finally:
        engine.close()
    gap = 0.0
    for request, answers in zip(requests, groups, strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens], device=policy.device)
            logits = policy.head(policy.body(input_ids=tokens))[0].float()
            logprobs = logits[len(request.prompt_tokens) - 1 : -1].log_softmax(-1)
            own = logprobs.gather(-1, tokens[0, len(request.prompt_tokens) :, None]).squeeze(-1)
            gap = max(gap, (own.cpu() - torch.tensor(answer.logprobs)).abs().max().item())
    if is_rounding(policy, gap, half=0.25):
        return None
    return f"its log-probs change by {gap:.2g} under our attention"
