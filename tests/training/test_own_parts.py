"""An engine, an optimizer and trackers from outside the package: by name, and from Python."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from safetensors import safe_open

import groupwise
from groupwise.config import Config, OptimizerSettings
from groupwise.errors import ConfigError
from groupwise.policy.load import Policy
from groupwise.recipe import load_recipe, parse
from groupwise.rollout.native.engine import NativeEngine
from groupwise.tracking.run import read_metrics
from groupwise.types import Completion, Request, Sampling
from runs import fingerprint, small_config

FILE = """
import json
import torch
import groupwise
from groupwise.rollout.native.engine import NativeEngine


@groupwise.optimizer
def sgd(groups, settings):
    return torch.optim.SGD(groups, lr=settings.lr, momentum=0.9)


@groupwise.engine
def counted(policy, config):
    engine = NativeEngine(policy, 7)
    engine.asked = 0
    return engine


@groupwise.tracker
class Lines:
    def __init__(self, folder, config):
        self.file = open(folder / "lines.jsonl", "a")

    def log(self, step, metrics):
        self.file.write(json.dumps([step, metrics["reward"]]) + "\\n")

    def close(self):
        self.file.close()


def unmarked(groups, settings):
    return torch.optim.SGD(groups, lr=settings.lr)
"""
QUICK = ("steps=2", "eval.problems=1", "eval.k=1")
NAMES = (
    "optimizer.kind=own_parts.py:sgd", "engine.kind=own_parts.py:counted",
    "tracking.own=[own_parts.py:Lines]",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    (tmp_path / "own_parts.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def sgd(groups: list[dict[str, Any]], settings: OptimizerSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=settings.lr, momentum=0.9)


class Engine:
    """The native engine, and how often it was asked."""

    def __init__(self, policy: Policy, config: Config) -> None:
        self.native, self.asked = NativeEngine(policy, 7), 0

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        self.asked += 1
        return await self.native.sample(request, sampling)

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.native.load_weights(version, weights)

    def close(self) -> None:
        self.native.close()


class Tracker:
    def __init__(self) -> None:
        self.rewards: dict[int, float] = {}
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rewards[step] = metrics["reward"]

    def close(self) -> None:
        self.closed = True


@pytest.mark.slow
def test_parts_named_in_overrides_train_and_resume_exactly(folder: pathlib.Path) -> None:
    whole = groupwise.train(small_config(*QUICK, *NAMES), "whole", quiet=True)
    groupwise.train(small_config(*QUICK, "steps=1", *NAMES), "halves", quiet=True)
    again = groupwise.train(small_config(*QUICK, *NAMES), "halves", quiet=True)
    assert fingerprint(whole.folder) == fingerprint(again.folder)
    lines = [json.loads(line) for line in (whole.folder / "lines.jsonl").read_text().splitlines()]
    assert lines == [[row["step"], row["reward"]] for row in read_metrics(whole.folder)]
    plain = groupwise.train(small_config(*QUICK), "plain", quiet=True)
    assert fingerprint(plain.folder) != fingerprint(whole.folder)


def test_objects_from_python_do_what_names_do(folder: pathlib.Path) -> None:
    named = groupwise.train(small_config(*QUICK, *NAMES), "named", quiet=True)
    engines: list[Engine] = []

    def engine(policy: Policy, config: Config) -> Engine:
        engines.append(Engine(policy, config))
        return engines[0]

    tracker = Tracker()
    passed = groupwise.train(
        small_config(*QUICK), "passed", engine=engine, optimizer=sgd, trackers=[tracker],
        quiet=True,
    )  # fmt: skip
    norms = [[row["grad_norm"] for row in read_metrics(run.folder)] for run in (named, passed)]
    assert norms[0] == norms[1] and engines[0].asked >= 2
    rewards = {row["step"]: row["reward"] for row in read_metrics(passed.folder)}
    assert tracker.rewards == rewards and tracker.closed


@pytest.mark.slow
def test_the_whole_state_of_an_optimizer_from_python_is_resumed(folder: pathlib.Path) -> None:
    """NAdam keeps a running product of its own beside the moments that AdamW has."""

    def nadam(groups: list[dict[str, Any]], settings: OptimizerSettings) -> torch.optim.Optimizer:
        return torch.optim.NAdam(groups, lr=settings.lr)

    whole = groupwise.train(small_config(*QUICK), "whole", optimizer=nadam, quiet=True)
    groupwise.train(small_config(*QUICK, "steps=1"), "halves", optimizer=nadam, quiet=True)
    again = groupwise.train(small_config(*QUICK), "halves", optimizer=nadam, quiet=True)
    assert fingerprint(whole.folder) == fingerprint(again.folder)
    names = set[str]()
    for path in (again.folder / "checkpoints" / "step-000002").glob("*.safetensors"):
        with safe_open(path, "pt") as stored:
            names |= {name.partition(".")[0] for name in stored.keys()}  # noqa: SIM118
    assert {"mu_product", "exp_avg", "exp_avg_sq"} <= names


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_file_may_name_them_only_when_trusted(folder: pathlib.Path, name: str) -> None:
    block, _, value = name.partition("=")
    section, key = block.split(".")
    listed = f"['{value[1:-1]}']" if value.startswith("[") else f"'{value}'"
    (folder / "recipe.yaml").write_text(f"{section}: {{{key}: {listed}}}")
    with pytest.raises(ConfigError, match="--trust-code"):
        load_recipe("recipe.yaml")
    load_recipe("recipe.yaml", trust_code=True)


def test_what_is_not_marked_or_not_known_is_refused(folder: pathlib.Path) -> None:
    (folder / "recipe.yaml").write_text("optimizer: {kind: 'own_parts.py:unmarked'}")
    with pytest.raises(ConfigError, match=r"@groupwise\.optimizer"):
        load_recipe("recipe.yaml", trust_code=True)
    with pytest.raises(ConfigError, match=r"must be adamw, adamw_8bit.*did you mean 'adamw'"):
        parse({}, ["optimizer.kind=adam"])
    with pytest.raises(ConfigError, match=r"engine\.kind: must be auto, native"):
        parse({}, ["engine.kind=sglang"])
