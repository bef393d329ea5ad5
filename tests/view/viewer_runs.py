"""Run folders for the viewer, written by the code that training writes them with."""

import json
import pathlib
from collections.abc import Sequence

from starlette.testclient import TestClient

from groupwise.tracking.run import RunFolder
from groupwise.types import Completion, Group, Problem
from groupwise.view.catalog import Catalog, run_id
from groupwise.view.server import Viewer, build_app
from runs import small_config

TOKEN = "a-token-of-the-test"
COOKIE = "view-test"


def answer(text: str, *, stop: str = "eos", tokens: Sequence[int] = (5, 6, 7)) -> Completion:
    logprobs = tuple(-0.1 * (i + 1) for i in range(len(tokens)))
    return Completion(tuple(tokens), logprobs, stop, text)  # type: ignore[arg-type]


def group(
    name: str,
    texts: Sequence[str] = ("right", "wrong"),
    correct: Sequence[float] = (1.0, 0.0),
    prompt: str = "What is 3+4?",
) -> Group:
    rewards = tuple(float(value) for value in correct)
    mean = sum(rewards) / len(rewards)
    return Group(
        Problem(name, prompt, {"answer": "7"}),
        (1, 2),
        tuple(answer(text) for text in texts),
        {"correct": rewards},
        rewards,
        tuple(reward - mean for reward in rewards),
    )


def make_run(
    folder: pathlib.Path, steps: int = 3, groups: Sequence[Group] | None = None, **settings: object
) -> pathlib.Path:
    """A run whose reward at step k is k / 10, with the same groups at each step."""
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    with RunFolder(folder, small_config(*overrides)) as run:
        for step in range(1, steps + 1):
            run.log_rollouts(step, groups or [group("p"), group("q", correct=(1.0, 1.0))])
            run.log_metrics({"step": step, "loss": 0.5, "reward": step / 10, "seconds": 2.0})
    return folder


def append_metrics(folder: pathlib.Path, text: str) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def client(*paths: pathlib.Path, signed_in: bool = True) -> TestClient:
    app = build_app(Viewer(Catalog(list(paths))), TOKEN, ["localhost"], COOKIE)
    cookies = {COOKIE: TOKEN} if signed_in else {}
    return TestClient(app, "http://localhost:8642", cookies=cookies, follow_redirects=False)


def api(folder: pathlib.Path) -> str:
    """The address of a run's data."""
    return f"/api/runs/{run_id(folder)}"


def row(step: int, **values: float) -> str:
    return json.dumps({"step": step, **values}) + "\n"
