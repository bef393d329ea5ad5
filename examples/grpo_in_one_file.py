"""GRPO in one file: torch and transformers, nothing of groupwise.

    python examples/grpo_in_one_file.py [MODEL_FOLDER] [STEPS]

The same algorithm as `groupwise train`, written to be read from top to bottom: sample a group of
answers to each question, score them, and push the model toward those that beat their group's mean.
A test holds it to the package: the same seed gives the same losses. The package adds speed, every
other objective, evaluation, checkpoints, and real tasks and rewards.
"""

import copy
import hashlib
import pathlib
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

TINY = pathlib.Path(__file__).parent.parent / "groupwise" / "policy" / "tiny"


@dataclass(frozen=True)
class Settings:
    steps: int = 40
    seed: int = 0
    prompts: int = 8  # N questions a step
    group_size: int = 8  # G answers to each
    epochs: int = 2  # mu: passes over the same answers
    max_tokens: int = 48
    lr: float = 1e-4
    clip: float = 0.2
    kl_weight: float = 0.01
    clip_norm: float = 1.0


# ---------------------------------------------------------------------------------------- the task


@dataclass(frozen=True)
class Problem:
    id: str
    question: str
    answer: str


def make_problems(count: int, seed: int) -> list[Problem]:
    """Sums like 23+48-16."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        a, b, c = (rng.randint(1, 99) for _ in range(3))
        p, q = rng.choice("+-"), rng.choice("+-")
        value = a + (b if p == "+" else -b) + (c if q == "+" else -c)
        expression = f"{a}{p}{b}{q}{c}"
        question = (
            f"What is {expression}? Work it out in <think> </think>, "
            "then give the result in <answer> </answer>."
        )
        problems[expression] = Problem(expression, question, str(value))
    return list(problems.values())


def correct(completion: str, answer: str) -> float:
    """1 when the text ends with the right number in its answer tags."""
    return float(completion.rstrip().endswith(f"<answer>{answer}</answer>"))


def well_formed(completion: str) -> float:
    """1 for <think>...</think><answer>...</answer>, each tag once."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    places = [completion.find(tag) for tag in tags]
    once = all(completion.count(tag) == 1 for tag in tags)
    return float(once and places == sorted(places) and completion.startswith("<think>"))


def reward(completion: str, problem: Problem) -> float:
    return correct(completion, problem.answer) + 0.2 * well_formed(completion)


# ------------------------------------------------------------------------------------------ chance
# Noise is a hash of (seed, step, problem, answer, position): the same seed gives the same answers
# whatever else is in the batch. argmax(logits + Gumbel noise) is a draw from softmax(logits).


def key(*parts: int | str) -> int:
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def signed(bits: int) -> int:
    return bits - (bits >> 31 << 32)


GOLDEN, MIX1, MIX2 = signed(0x9E3779B9), signed(0x85EBCA6B), signed(0xC2B2AE35)


def mix(h: Tensor, salt: Tensor | int = 0) -> Tensor:
    h = (h ^ ((h >> 16) & 0xFFFF)) * MIX1 + salt
    h = (h ^ ((h >> 13) & 0x7FFFF)) * MIX2
    return h ^ ((h >> 16) & 0xFFFF)


def gumbel(keys: list[int], position: int, vocab: int) -> Tensor:
    halves = torch.tensor([[signed(k & 0xFFFFFFFF), signed(k >> 32)] for k in keys]).int()
    low = mix(halves[:, 0] ^ mix(torch.full((len(keys),), position).int() * GOLDEN))
    high = mix(halves[:, 1] + low)
    h = mix(torch.arange(vocab).int() * GOLDEN ^ mix(low ^ high)[:, None], high[:, None])
    return -(-(((h >> 1 | -(2**31)).float() + 0.5) * 2.0**-31 * (1 - 2.0**-24)).log1p()).log()


# ----------------------------------------------------------------------------------------- rollout


@dataclass
class Answer:
    prompt: list[int]
    tokens: list[int]
    text: str
    reward: float = 0.0
    advantage: float = 0.0


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, problems: list[Problem], step: int, settings: Settings
) -> list[list[Answer]]:
    """G answers to each problem, one token at a time."""
    prompts, keys = [], []
    for problem in problems:
        chat = [{"role": "user", "content": problem.question}]
        tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        for index in range(settings.group_size):
            prompts.append(list(tokens["input_ids"]))
            keys.append(key(settings.seed, step, problem.id, index))
    width = max(map(len, prompts))
    inputs = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    answers = [Answer(prompt, [], "") for prompt in prompts]
    alive, cache = torch.ones(len(prompts), dtype=torch.bool), None
    for position in range(settings.max_tokens):
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
        out = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        logits = out.logits[:, -1].float()
        inputs = (logits + gumbel(keys, position, logits.shape[-1])).argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
        for answer, token, on in zip(answers, inputs[:, 0].tolist(), alive.tolist(), strict=True):
            if on:
                answer.tokens.append(token)
        alive &= inputs[:, 0] != tokenizer.eos_token_id
        if not alive.any():
            break
    for answer in answers:
        answer.text = tokenizer.decode(answer.tokens, skip_special_tokens=True)
    size = settings.group_size
    return [answers[i : i + size] for i in range(0, len(answers), size)]


def score(groups: list[list[Answer]], problems: list[Problem]) -> None:
    """Rewards, and advantages: how far an answer is above its group's mean, in deviations."""
    for group, problem in zip(groups, problems, strict=True):
        rewards = torch.tensor([reward(a.text, problem) for a in group], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for answer, r, a in zip(group, rewards.tolist(), advantages.tolist(), strict=True):
            answer.reward, answer.advantage = r, a


# ------------------------------------------------------------------------------------------ update


def logprobs_of(model: Any, answers: list[Answer]) -> tuple[Tensor, Tensor]:
    """Log-probs of the answers' tokens, (answers, longest), and the mask of real ones."""
    rows = [a.prompt + a.tokens for a in answers]
    width, longest = max(map(len, rows)), max(len(a.tokens) for a in answers)
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    visible = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logprobs = (
        model(input_ids=tokens, attention_mask=visible).logits[:, :-1].float().log_softmax(-1)
    )
    logprobs = logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    lines = []
    for line, answer in zip(logprobs, answers, strict=True):
        own = line[len(answer.prompt) - 1 :][: len(answer.tokens)]
        lines.append(torch.nn.functional.pad(own, (0, longest - len(own))))
    mask = torch.tensor(
        [[1.0] * len(a.tokens) + [0.0] * (longest - len(a.tokens)) for a in answers]
    )
    return torch.stack(lines), mask


def grpo_loss(
    logprobs: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor, settings: Settings
) -> Tensor:
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    surrogate = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    kl = (ref - logprobs).exp() - (ref - logprobs) - 1
    per_token = surrogate + settings.kl_weight * kl
    return ((per_token * mask).sum(-1) / mask.sum(-1)).mean()


def train(settings: Settings, model_folder: str | pathlib.Path = TINY) -> list[dict[str, float]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    data = make_problems(256, settings.seed)
    order = list(range(len(data)))
    random.Random(key(settings.seed, "epoch", 0)).shuffle(order)
    log = []
    for step in range(settings.steps):
        places = range(step * settings.prompts, (step + 1) * settings.prompts)
        problems = [data[order[place % len(data)]] for place in places]
        groups = sample(model, tokenizer, problems, step, settings)
        score(groups, problems)
        answers = [answer for group in groups for answer in group]
        advantages = torch.tensor([a.advantage for a in answers])
        with torch.no_grad():
            old, mask = logprobs_of(model, answers)
            ref, _ = logprobs_of(reference, answers)
        losses, norms = [], []
        for _ in range(settings.epochs):
            logprobs, _ = logprobs_of(model, answers)
            loss = grpo_loss(logprobs, old, ref, advantages, mask, settings)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            norms.append(norm.item())
        numbers = {"reward": [a.reward for a in answers], "loss": losses, "grad_norm": norms}
        log.append({name: sum(values) / len(values) for name, values in numbers.items()})
        print(step + 1, *(f"{name} {value:.4f}" for name, value in log[-1].items()), flush=True)
    return log


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else TINY
    train(Settings(steps=int(sys.argv[2]) if len(sys.argv) > 2 else 40), folder)
