"""What turns cost: python benchmarks/turns.py [--model shape:1.5b] [--prompts 32] [--group 8]

The same number of answers, sampled as plain requests, as episodes of one turn, and as episodes of
three turns of natural lengths, by the native engine. The environment replies at once, so what an
episode takes beyond its tokens is ours. Its code has a thread for each episode (own), one for all
of them (shared), or none (sampling). Seconds are medians; weights of a shape are random.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from groupwise.config import Config
from groupwise.environments.base import Environment, EnvironmentFactory, Reply, Thread, Turn
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.groups import Episodes
from groupwise.load import make_engine
from groupwise.policy.load import make_policy
from groupwise.policy.policy import Policy
from groupwise.policy.prompts import fit_prompts
from groupwise.rollout.engine import Engine
from groupwise.rollout.groups import GroupSampling, Prompted, sample_group
from groupwise.types import Group, Problem, Sampling
from sidebyside import models
from sidebyside.record import synchronize
from sidebyside.settings import Setting

TURNS = 3
THREADS: tuple[Thread, ...] = ("own", "shared", "sampling")


class Continues(Environment):
    def __init__(self, turns: int) -> None:
        self.left = turns

    async def step(self, turn: Turn) -> Reply:
        self.left -= 1
        return Reply(({"role": "user", "content": " t5 t6 t7"},), done=not self.left)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="shape:1.5b")
    for name, value in (("prompts", 32), ("group", 8), ("tokens", 256), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def sampler(setting: Setting) -> tuple[Engine, Policy, list[Prompted]]:
    model, tokenizer = models.build(setting)
    config = Config.model_validate(
        {
            "model": setting.model,
            "device": setting.device,
            "batch": {"prompts": setting.prompts, "group_size": setting.group},
            "compile": "all" if setting.device == "cuda" else "none",
        }
    )
    policy = make_policy(model.eval(), tokenizer, config.batch.layout)
    problems = [Problem(str(i), text) for i, text in enumerate(models.prompts(setting, tokenizer))]
    prompted, _ = fit_prompts(problems, tokenizer, 2 * setting.prompt_tokens)
    return make_engine(policy, config), policy, prompted


def episodes(policy: Policy, thread: Thread, turns: int, tokens: int) -> Episodes:
    factory = EnvironmentFactory(
        "continues", lambda problem: Continues(turns), scores=False, thread=thread
    )
    limits = EpisodeLimits(max_tokens=tokens, max_turns=turns)
    return Episodes(factory, policy.tokenizer, policy.eos_ids, limits)


def timed(
    setting: Setting, repeats: int, work: Callable[[int], Coroutine[Any, Any, list[Group]]]
) -> tuple[float, float]:
    """Seconds and sampled tokens; the first time does not count."""
    seconds, tokens = [], []
    for number in range(repeats + 1):
        synchronize(setting.device)
        began = time.perf_counter()
        groups = asyncio.run(work(number))
        synchronize(setting.device)
        seconds.append(time.perf_counter() - began)
        tokens.append(sum(c.length for group in groups for c in group.completions))
    return statistics.median(seconds[1:]), statistics.median(tokens[1:])


def main() -> None:
    options = arguments()
    setting = Setting(
        options.device, options.model, options.prompts, options.group, 200, options.tokens,
        lengths="natural",
    )  # fmt: skip
    engine, policy, prompted = sampler(setting)
    sampling = Sampling(max_tokens=options.tokens)
    kinds: list[tuple[str, Episodes | None]] = [("plain requests", None)]
    for turns in (1, TURNS):
        kinds += [
            (f"{turns} turns, {thread}", episodes(policy, thread, turns, options.tokens))
            for thread in THREADS
        ]
    print(setting.describe())
    for name, made in kinds:

        async def work(number: int, made: Episodes | None = made) -> list[Group]:
            how = GroupSampling(engine, policy, sampling, options.group, seed=0, episodes=made)
            return await asyncio.gather(*(sample_group(each, number, how) for each in prompted))

        seconds, tokens = timed(setting, options.repeats, work)
        print(f"{name:20s} {seconds:7.3f} s {tokens:8.0f} tokens {tokens / seconds:9.0f} tokens/s")
    engine.close()


if __name__ == "__main__":
    main()
