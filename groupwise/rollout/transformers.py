"""The reference engine: the model's own `generate`, so anything that transformers can run.

Our keyed sampler sits inside as a logits processor that leaves one token possible; `generate` then
decodes greedily. That gives the same answers as every other engine, and log-probs for free.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers import StoppingCriteria as StoppingCriterion
from transformers.generation import GenerationConfig, StoppingCriteriaList

from groupwise.policy.policy import Policy
from groupwise.policy.token_logprobs import token_logprobs
from groupwise.policy.weights import copy_into, trained_weights
from groupwise.rollout.batching import BatchingEngine
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling, StopReason


class TransformersEngine(BatchingEngine):
    def __init__(self, policy: Policy, max_batch: int) -> None:
        super().__init__()
        self.policy = policy
        self.max_batch = max_batch
        self.version = 0

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        copy_into(trained_weights(self.policy), weights)
        self.version = version

    def close(self) -> None:
        """It holds nothing but the policy."""

    async def sample_batch(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        rows = [(request.prompt_tokens, key) for request in requests for key in request.keys]
        answers: list[Completion] = []
        for start in range(0, len(rows), self.max_batch):
            answers += self._generate_rows(rows[start : start + self.max_batch], sampling)
        following = iter(answers)
        return [tuple(next(following) for _ in request.keys) for request in requests]

    @torch.no_grad()
    def _generate_rows(
        self, rows: Sequence[tuple[tuple[int, ...], int]], sampling: Sampling
    ) -> list[Completion]:
        policy = self.policy
        model: PreTrainedModel = policy.model
        width = max(len(prompt) for prompt, _ in rows)
        pad = policy.pad_id
        tokens = torch.tensor([[pad] * (width - len(p)) + list(p) for p, _ in rows])
        visible = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in rows])
        sampler = KeyedSampler([key for _, key in rows], width, sampling, policy.device)
        stops = StopStrings(sampling.stop, policy.tokenizer)
        was_training = model.training
        model.eval()
        output = model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=tokens.to(policy.device),
            attention_mask=visible.to(policy.device),
            generation_config=GenerationConfig(
                max_new_tokens=sampling.max_tokens,
                do_sample=False,
                eos_token_id=list(policy.eos_ids),
                pad_token_id=pad,
            ),
            logits_processor=LogitsProcessorList([sampler]),
            stopping_criteria=StoppingCriteriaList([_AtStopString(stops, width)]),
        )
        model.train(was_training)
        drawn = output[:, width:].tolist()
        if len(sampler.logprobs) == len(drawn[0]):
            logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
        else:  # the model has a `generate` of its own, which ignored our sampler
            seen = visible.to(policy.device)
            logprobs = self._logprobs_of(output, seen, sampling.temperature).tolist()
        return [self._cut(row, lps, stops) for row, lps in zip(drawn, logprobs, strict=True)]

    def _logprobs_of(self, output: Tensor, visible: Tensor, temperature: float) -> Tensor:
        """Log-probs of the tokens after the prompts, computed by the model in one pass."""
        policy, width = self.policy, visible.shape[1]
        real = nn.functional.pad(visible, (0, output.shape[1] - width), value=1)
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        hidden = policy.body(input_ids=output, attention_mask=real, position_ids=positions)
        before, drawn = hidden[:, width - 1 : -1].flatten(0, 1), output[:, width:]
        logprobs, _ = token_logprobs(
            before, policy.head, drawn.flatten(), temperature or 1.0, vocab=policy.vocab
        )
        return logprobs.view(drawn.shape)

    def _cut(self, tokens: list[int], logprobs: list[float], stops: StopStrings) -> Completion:
        """The answer up to its end: `generate` pads finished rows to the longest."""
        length, stop = len(tokens), "length"
        for index, token in enumerate(tokens):
            if token in self.policy.eos_ids:
                length, stop = index + 1, "eos"
                break
        at = stops.first_end(tokens[:length])
        if at is not None and (stop != "eos" or at < length):
            length, stop = at, "stop"
        reason: StopReason = stop
        return Completion(
            tuple(tokens[:length]), tuple(logprobs[:length]), reason, "", self.version
        )


class KeyedSampler(LogitsProcessor):
    """Draws each row's next token with its own key and leaves only that token possible."""

    def __init__(
        self, keys: list[int], prompt_width: int, sampling: Sampling, device: torch.device
    ) -> None:
        self.keys_B2 = key_tensor(keys, device)
        self.prompt_width = prompt_width
        self.sampling = sampling
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        position = input_ids.shape[1] - self.prompt_width
        positions = torch.full((len(input_ids),), position, device=scores.device)
        tokens, logprobs = sample_tokens(scores, self.keys_B2, positions, self.sampling, input_ids)
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens[:, None], 0.0)


class _AtStopString(StoppingCriterion):
    def __init__(self, stops: StopStrings, prompt_width: int) -> None:
        self.stops = stops
        self.prompt_width = prompt_width

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Any:
        done = [False] * len(input_ids)
        if self.stops.strings:
            done = [
                self.stops.just_ended(row) for row in input_ids[:, self.prompt_width :].tolist()
            ]
        return torch.tensor(done, device=input_ids.device)
