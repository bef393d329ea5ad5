"""How fast the viewer opens a long run: python benchmarks/viewer.py

Makes a run of 10,000 steps and 1,000,000 answers in a temporary folder and measures the way from
the command to curves on the screen, then what a person does next. The answers of a step repeat
every few steps, which makes the run quick to write; nothing in the viewer profits from that.
"""

import argparse
import gzip
import json
import math
import tempfile
import time
from http.cookiejar import CookieJar
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from rich.console import Console
from rich.table import Table

from browser import browser, viewer, why_no_browser
from groupwise.config import Config
from groupwise.recipe import write_config
from groupwise.tracking.run import INDEX
from groupwise.types import Completion, Group, Problem, to_json

GROUPS, ANSWERS, TOKENS, VARIANTS = 10, 10, 40, 16
METRICS = (
    *("loss", "reward", "reward_std", "accuracy", "rewards/correct", "rewards/format", "kl"),
    *("entropy", "ratio", "clip_low", "clip_high", "sampler_gap", "grad_norm", "lr", "updates"),
    *("no_spread", "truncated", "tokens", "tokens_max", "problems_drawn", "memory_gb", "seconds"),
    *("seconds/generate", "seconds/reward", "seconds/logprobs", "seconds/update"),
    *("tokens_per_second", "eval/accuracy", "eval/reward", "eval/format"),
)


def make_run(folder: Path, steps: int) -> Path:
    """A run folder in the format that training writes."""
    (folder / "rollouts").mkdir(parents=True)
    write_config(Config(steps=steps), folder / "config.yaml")
    random = Random(0)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            level = 1 - math.exp(-step / steps * 3)
            row = {name: level + random.gauss(0, 0.1) for name in METRICS}
            file.write(json.dumps({"step": step, **row}) + "\n")
    packed = [_packed_step(variant) for variant in range(min(VARIANTS, steps))]
    with (folder / INDEX).open("w") as file:
        for step in range(1, steps + 1):
            data, names = packed[step % len(packed)]
            (folder / "rollouts" / f"step-{step:06d}.jsonl.gz").write_bytes(data)
            rows = [[name, 0.0, random.random(), 1.0] for name in names]
            file.write(json.dumps({"step": step, "groups": rows}) + "\n")
    return folder


def _packed_step(variant: int) -> tuple[bytes, list[str]]:
    random = Random(variant)
    groups = [_group(f"sum/{variant}/{place}", random) for place in range(GROUPS)]
    text = "".join(json.dumps(to_json(group)) + "\n" for group in groups)
    return gzip.compress(text.encode(), 6), [group.problem.id for group in groups]


def _group(name: str, random: Random) -> Group:
    completions = []
    for _ in range(ANSWERS):
        tokens = tuple(random.randrange(3, 60) for _ in range(TOKENS))
        logprobs = tuple(-random.random() for _ in tokens)
        text = " ".join(f"word{token}" for token in tokens)
        completions.append(Completion(tokens, logprobs, "eos", text, old_logprobs=logprobs))
    rewards = tuple(float(random.random() < 0.5) for _ in completions)
    return Group(
        Problem(name, f"What is {name}?", {"answer": "7"}),
        (1, 2, 3),
        tuple(completions),
        {"correct": rewards},
        rewards,
        tuple(reward - 0.5 for reward in rewards),
    )


def measure(run: Path) -> dict[str, float]:
    """Seconds for each thing that a person does, in order, in a fresh viewer."""
    seconds: dict[str, float] = {}
    with viewer(run) as served:
        seconds["command to address"] = served.seconds
        opener = build_opener(HTTPCookieProcessor(CookieJar()))
        opener.open(served.address).read()
        base = served.address.partition("/?")[0]
        run_id = _timed(seconds, "list of runs", opener, f"{base}/api/runs")["runs"][0]["id"]
        api = f"{base}/api/runs/{run_id}"
        last = _timed(seconds, "all curves", opener, f"{api}/metrics?width=17")["last_step"]
        seconds["open: sum of the above"] = sum(seconds.values())
        seconds["open: of that, computing"] = served.cpu_seconds
        _timed(seconds, "stored steps", opener, f"{api}/steps")
        _timed(seconds, "answers of the last step", opener, f"{api}/steps/{last}/groups")
        _timed(seconds, "tokens of a group", opener, f"{api}/steps/{last}/groups/3/tokens")
        _timed(seconds, "table of problems", opener, f"{api}/problems")
        _timed(seconds, "one problem over training", opener, f"{api}/problem?id=%22sum/3/3%22")
        _timed(seconds, "first search results", opener, f"{api}/search?q=word7")
        found = _timed(seconds, "a slice of a search in vain", opener, f"{api}/search?q=nowhere")
        seconds["(steps searched in that slice)"] = float(found["searched"])
        seconds["(megabytes of memory)"] = served.megabytes
    if why_no_browser() is None:
        seconds |= _in_browser(run)
    return seconds


def _timed(seconds: dict[str, float], name: str, opener: OpenerDirector, address: str) -> Any:
    began = time.perf_counter()
    with opener.open(address) as response:
        answer = json.loads(response.read())
    seconds[name] = time.perf_counter() - began
    return answer


def _in_browser(run: Path) -> dict[str, float]:
    """From the command to drawn curves, and the slowest frame while scrolling through answers."""
    with viewer(run) as served, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1200, "height": 800})
        began = time.perf_counter()
        page.goto(served.address)
        page.wait_for_selector(".chart canvas")
        drawn = time.perf_counter() - began
        page.keyboard.press("2")
        page.wait_for_selector(".answer .token")
        frames = sorted(page.evaluate(SCROLL))
    return {
        "browser: command to curves": served.seconds + drawn,
        "browser: address to curves": drawn,
        "browser: median frame, scrolling": frames[len(frames) // 2] / 1000,
        "browser: slowest frame, scrolling": frames[-1] / 1000,
    }


SCROLL = """async () => {
  const frames = [];
  let last = performance.now();
  for (let i = 0; i < 120; i += 1) {
    window.scrollBy({ top: 80, behavior: "instant" });
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = make_run(Path(folder) / "long", options.steps)
        made = time.perf_counter() - began
        answers = options.steps * GROUPS * ANSWERS
        results = measure(run)
    table = Table(title=f"{options.steps:,} steps, {answers:,} answers (made in {made:.0f} s)")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for name, value in results.items():
        table.add_row(name, f"{value:.0f}" if name.startswith("(") else f"{value:.3f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
