"""What a slow tool costs: python benchmarks/slow_tools.py [--episodes 512] [--at-once 64]

Episodes of three turns with the embedded model on a CPU, of which 64 run at a time. Every tenth
call sleeps for two seconds; the same answers are sampled with and without the sleep, in turn, and
the medians of `--repeats` are printed, with the lowest and the highest rate. Where trl is
installed, its own loop (`GRPOTrainer._tool_call_loop`) makes the same calls of a function in
batches of 64, sampled by the same engine; in it every turn counts as a call.
"""

import argparse
import asyncio
import importlib.util
import statistics
import time
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from groupwise.load import Parts, load_parts
from groupwise.recipe import load_recipe
from groupwise.rollout.engine import run_sync
from groupwise.types import Request, Sampling
from slow_tool import SLEEP_SECONDS, TURNS

GROUP = 8


def loaded(environment: str, at_once: int, tokens: int) -> Parts:
    overrides = [
        f"environment=slow_tool:{environment}",
        f"environment.at_once={at_once}",
        f"rollout.max_completion_tokens={tokens * TURNS}",
        "device=cpu",
        "task.test_size=2",
    ]
    return load_parts(load_recipe("demo", overrides))


def stream_rate(environment: str, episodes: int, at_once: int, tokens: int) -> float:
    """Episodes a second; the model, and processes for the environments, are there before."""
    with loaded(environment, at_once, tokens) as parts:
        _stream(parts, at_once)
        began = time.perf_counter()
        _stream(parts, episodes)
        return episodes / (time.perf_counter() - began)


def _stream(parts: Parts, episodes: int) -> None:
    problems, sampling = parts.problems["train"][: episodes // GROUP], parts.config.rollout.sampling
    groups = parts.sample_groups(problems, sampling, group_size=GROUP, step=episodes)
    failed = [c.episode.error for g in groups for c in g.completions if c.episode]
    assert not any(failed), failed


def trl_rate(slow: bool, at_once: int, tokens: int) -> float:
    """Of two batches: they are alike, since each begins when the one before it has ended."""
    with loaded("Quick", at_once, tokens) as parts:
        problems = parts.problems["train"][: 2 * at_once]
        prompts = [list(prompt) for _, prompt in problems]
        began = time.perf_counter()
        for first in range(0, len(prompts), at_once):
            _trl_batch(parts, prompts[first : first + at_once], slow, tokens)
        return len(prompts) / (time.perf_counter() - began)


def _trl_batch(parts: Parts, prompts: list[list[int]], slow: bool, tokens: int) -> None:
    from trl.trainer import grpo_trainer

    sampling = Sampling(tokens)

    def generate(prompts: list[list[int]], *rest: Any, **more: Any) -> tuple[Any, Any]:
        async def sample() -> Any:
            requests = [Request(tuple(ids), (key,)) for key, ids in enumerate(prompts)]
            return await asyncio.gather(*(parts.engine.sample(r, sampling) for r in requests))

        answers = [answer for (answer,) in run_sync(sample())]
        return [list(a.tokens) for a in answers], [list(a.logprobs) for a in answers]

    def work(key: int) -> str:
        if slow and key % 10 == 0:
            time.sleep(SLEEP_SECONDS)
        return "Go on."

    def parsed(tokenizer: Any, ids: list[int], **more: Any) -> dict[str, Any]:
        function = {"name": "work", "arguments": {"key": zlib.crc32(str(ids).encode())}}
        calls = [{"type": "function", "function": function}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    suffix = parts.policy.tokenizer("Go on.", add_special_tokens=False)["input_ids"]
    trainer = SimpleNamespace(
        max_tool_calling_iterations=TURNS - 1,
        _sync_tool_dicts=[{"work": work}] * len(prompts),
        _async_tool_dicts=[{}] * len(prompts),
        _get_tool_suffix_ids=lambda messages: suffix,
        _generate_single_turn=generate,
        _tokenizer=parts.policy.tokenizer,
        _is_vlm=False,
        use_vllm=False,
        tools=[work],
        environment_factories=None,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=10**6)),
        max_completion_length=10**6,
    )
    answers, logprobs = generate(prompts)
    first = [[parsed(None, ids)] for ids in answers]
    theirs, grpo_trainer.parse_response = grpo_trainer.parse_response, parsed
    try:
        grpo_trainer.GRPOTrainer._tool_call_loop(
            cast(Any, trainer), [[] for _ in prompts], prompts, answers, first, logprobs, None, {}
        )
    finally:
        grpo_trainer.parse_response = theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="of a turn, at most")
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    sizes = chosen.episodes, chosen.at_once, chosen.tokens
    ways = {"groupwise": lambda slow: stream_rate("Slow" if slow else "Quick", *sizes)}
    if importlib.util.find_spec("trl"):
        ways["trl's loop"] = lambda slow: trl_rate(slow, *sizes[1:])
    for name, rate in ways.items():
        pairs = [(rate(False), rate(True)) for _ in range(chosen.repeats)]
        quick, slow = zip(*pairs, strict=True)
        cost = 1 - statistics.median(slow) / statistics.median(quick)
        print(
            f"{name}: {_spread(quick)} episodes a second, {_spread(slow)} with the slow tool: "
            f"it costs {cost:.0%} of the throughput",
            flush=True,
        )


def _spread(rates: Sequence[float]) -> str:
    between = f" ({min(rates):.1f} to {max(rates):.1f})" if len(rates) > 1 else ""
    return f"{statistics.median(rates):.1f}{between}"


if __name__ == "__main__":
    main()
