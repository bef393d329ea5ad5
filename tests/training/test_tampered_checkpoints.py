"""Every file of a real checkpoint harmed in every way, with and without a manifest that agrees.

The bar: an earlier checkpoint is used and said, or one clear error; never a traceback, never a
hang. What may pass is a change to the numbers inside tensors under a manifest that was made anew.
"""

import json
import logging
import os
import pathlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupwise.errors import GroupwiseError, Interrupted, RunFolderError
from groupwise.load import load_parts
from groupwise.training import api, collect
from groupwise.training.api import start_state, train
from groupwise.training.checkpoint import newest_checkpoint
from groupwise.training.damage import find_damage, make_manifest, saved_contents, sealed
from runs import STATEFUL, small_config

CONFIG = small_config("steps=4", "checkpoint.every=1", *STATEFUL, "rollout.max_draws=1")
WRONG: list[Any] = [None, True, -1, 10**30, 1e308, float("nan"), "x", [], {}, [[[]]], {"a": 1}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The checkpoints of a run that was stopped with answers it had not learned from yet."""
    folder, original = tmp_path_factory.mktemp("saved") / "run", collect.draw

    def stop_here(problems: Any, cursor: int, *rest: Any) -> Any:
        if cursor == 3 * CONFIG.batch.prompts:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(problems, cursor, *rest)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(collect, "draw", stop_here)
        train(CONFIG, folder, quiet=True)
    return folder / "checkpoints"


@pytest.fixture
def root(saved: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(saved, tmp_path / "run" / "checkpoints")
    return tmp_path / "run" / "checkpoints"


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def harm(path: pathlib.Path, rng: random.Random) -> str:
    """Do one of many bad things to a file; what it was."""
    data = path.read_bytes()

    def flip() -> None:
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 8])):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)

    def wrong_json() -> None:
        tree = json.loads(data)
        node, steps = tree, rng.randint(0, 4)
        for _ in range(steps):
            inner = [v for v in (node.values() if isinstance(node, dict) else node) if v]
            inner = [v for v in inner if isinstance(v, dict | list)]
            if not inner:
                break
            node = rng.choice(inner)
        if isinstance(node, dict):
            node[rng.choice([*node, "new"])] = rng.choice(WRONG)
        else:
            node[rng.randrange(len(node))] = rng.choice(WRONG)
        path.write_text(json.dumps(tree))

    def replaced(make: Callable[[], object]) -> Callable[[], None]:
        def act() -> None:
            path.unlink()
            make()

        return act

    ways: dict[str, Callable[[], Any]] = {
        "delete": path.unlink,
        "empty": lambda: path.write_bytes(b""),
        "truncate": lambda: path.write_bytes(data[: rng.randrange(len(data))]),
        "flip": flip,
        "garbage": lambda: path.write_bytes(rng.randbytes(len(data))),
        "deep": lambda: path.write_bytes(b"[" * 100_000),
        "digits": lambda: path.write_bytes(b'{"step": ' + b"9" * 5000 + b"}"),
        "longer": lambda: path.write_bytes(data + b"\0" * 100),
        "fifo": replaced(lambda: os.mkfifo(path)),
        "folder": replaced(path.mkdir),
        "dangling": replaced(lambda: path.symlink_to("nowhere")),
        "loop": replaced(lambda: path.symlink_to(path.name)),
        "device": replaced(lambda: path.symlink_to("/dev/zero")),
    }
    if path.suffix == ".json":
        ways |= {"wrong json": wrong_json, "wrong json again": wrong_json}
    way = rng.choice(sorted(ways))
    ways[way]()
    return way


def load(newest: pathlib.Path) -> None:
    with load_parts(CONFIG, weights=str(newest / "model")) as parts:
        start_state(parts, newest)


def attack(root: pathlib.Path, rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    victim = root / "step-000003"
    names = sorted(str(p.relative_to(victim)) for p in victim.rglob("*") if p.is_file())
    name = rng.choice(names)
    before = (victim / name).read_bytes()
    way = harm(victim / name, rng)
    rewritten = name != "manifest.json" and rng.random() < 0.6
    if rewritten:
        (victim / "manifest.json").write_text(json.dumps(make_manifest(victim)))
    case = f"{way} {name}{' with a new manifest' if rewritten else ''}"
    caplog.clear()
    with within(60), caplog.at_level(logging.WARNING, "groupwise"):
        newest = newest_checkpoint(root)
        assert newest is not None, case
        if newest.name == "step-000002":
            assert "step-000003 is damaged" in caplog.text, case
            return
        same = (victim / name).read_bytes() == before
        numbers = rewritten and name.endswith(".safetensors")
        manifest = name == "manifest.json"  # white space or nothing: it says what it said
        assert same or numbers or manifest, f"{case} passes"
        try:
            load(newest)
        except GroupwiseError:
            return


def attacks(seeds: range, saved: pathlib.Path, root: pathlib.Path, caplog: Any) -> None:
    for seed in seeds:
        shutil.rmtree(root)
        shutil.copytree(saved, root)
        attack(root, random.Random(seed), caplog)


def test_no_harm_to_a_checkpoint_goes_unnoticed(
    saved: pathlib.Path, root: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacks(range(25), saved, root, caplog)


@pytest.mark.slow
def test_no_harm_to_a_checkpoint_goes_unnoticed_at_length(
    saved: pathlib.Path, root: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacks(range(1000, 1600), saved, root, caplog)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def act(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[next(key for key in tensors if key.startswith(name))]

    return act


def cut(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def act(tensors: dict[str, torch.Tensor]) -> None:
        key = next(key for key in tensors if key.startswith(name))
        tensors[key] = tensors[key][:-1].contiguous()

    return act


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("model/model.safetensors", without("model.layers")),
        ("model/model.safetensors", cut("model.layers")),
        ("optimizer.safetensors", without("exp_avg_sq")),
        ("optimizer.safetensors", cut("exp_avg.model.layers")),
        ("optimizer.safetensors", dict.clear),
        ("reference.safetensors", without("model.")),
    ],
)
def test_tensors_that_are_missing_or_misshapen_are_noticed_under_a_new_manifest(
    file: str, change: Callable[[dict[str, torch.Tensor]], None], root: pathlib.Path
) -> None:
    folder = root / "step-000003"
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)
    (folder / "manifest.json").write_text(json.dumps(make_manifest(folder)))
    assert file in str(find_damage(folder))
    newest = newest_checkpoint(root)
    assert newest is not None and newest.name == "step-000002"


def test_an_optimizer_file_that_is_gone_is_noticed_under_a_new_manifest(root: pathlib.Path) -> None:
    folder = root / "step-000003"
    (folder / "optimizer.safetensors").unlink()
    (folder / "manifest.json").write_text(json.dumps(make_manifest(folder)))
    assert find_damage(folder) == "optimizer.safetensors is missing"


def test_what_was_not_saved_with_a_checkpoint_is_noticed(root: pathlib.Path) -> None:
    folder = root / "step-000003"
    (folder / "model" / "adapter_config.json").write_text("{}")
    assert find_damage(folder) == "model/adapter_config.json is not in its manifest"


def test_moments_that_do_not_fit_the_weights_are_refused_at_load(root: pathlib.Path) -> None:
    """Also where state.json was made to agree."""
    folder = root / "step-000003"
    tensors = load_file(folder / "optimizer.safetensors")
    cut("exp_avg.model.layers")(tensors)
    save_file(tensors, folder / "optimizer.safetensors")
    state = json.loads((folder / "state.json").read_text())
    state["contents"] = saved_contents(folder)
    (folder / "state.json").write_text(json.dumps(sealed(state)))
    (folder / "manifest.json").write_text(json.dumps(make_manifest(folder)))
    assert find_damage(folder) is None
    with pytest.raises(RunFolderError, match=r"does not fit the model: exp_avg.model.layers"):
        load(folder)
    assert api.newest_checkpoint(root) == folder
