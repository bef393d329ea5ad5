"""Training runs that are killed, run out of disk or find their folder changed, then go on.

After the disturbances the same command is run again: it must end with the weights, metrics and
answers of a run that nothing disturbed. In flight, what ends first depends on speed: there no
problem may be skipped or learned from twice.
"""

import gzip
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time
from typing import Any

import groupwise
from attack.case import Case, Outcome
from attack.commands import SMALL, edited, run_command
from attack.faults import CALLS, ERRORS, SIGNALS, WRITES, note_counts, with_fault
from attack.isolated import Ended, isolated

LIMIT = 150.0
RUN = [*SMALL, "steps=4", "checkpoint.every=2", "eval.every=2"]
VARIANTS: dict[str, list[str]] = {
    "in_turn": RUN,
    "epochs": [
        *RUN, "batch.epochs=2", "batch.minibatches=2", "reference.kind=mixed", "reference.every=2",
        "algorithm.kl_weight=0.01", "algorithm.entropy_target=3.0", "optimizer.schedule=cosine",
        "optimizer.average=3",
    ],
    "dynamic": [*RUN, "rollout.max_draws=2"],
    "lora": [*RUN, "adapter=lora"],
    "ahead": [*RUN, "timing=ahead"],
    "in_flight": [*RUN, "timing=in_flight"],
    "turns": [
        "guess_number", *SMALL, "steps=3", "checkpoint.every=1", "task.train_size=40",
        "task.span=8", "environment.max_turns=3", "rollout.max_completion_tokens=40",
        "environment.in_rounds=true",
    ],
    "workers": [*RUN, "place.count=1", "timing=ahead"],
    "ranks": [*RUN, "--nproc", "2"],
}  # fmt: skip
USUAL = ("in_turn", "epochs", "dynamic", "lora", "ahead", "in_flight", "turns")
"""Those that start no process of groupwise's own, which takes seconds."""
START_SECONDS = 4.0
CLOCKS = ("seconds", "tokens_per_second", "memory_gb", "cpu_cores", "episode/waiting", "waited")


def words_of(variant: str, out: str = "run") -> list[str]:
    return ["train", *VARIANTS[variant], "--out", out, "--quiet"]


def undisturbed(variant: str, root: pathlib.Path) -> pathlib.Path:
    """A folder with `run`, how often each point was reached in it and how long it took."""
    made = root / f"undisturbed-{variant}"
    if not made.exists():
        aside = root / f"{variant}.new"
        aside.mkdir()
        began = time.monotonic()
        ended = attempt(variant, aside, None, counts=aside / "counts.json")
        assert ended.code == 0 and not ended.orphans, ended
        (aside / "seconds").write_text(str(time.monotonic() - began))
        aside.rename(made)
    return made


def attempt(
    variant: str,
    folder: pathlib.Path,
    fault: dict[str, Any] | None,
    out: str = "run",
    counts: pathlib.Path | None = None,
) -> Ended:
    """Run the command in `folder` once, with a fault (None: without)."""

    def work() -> None:
        if is_fresh(variant, fault):
            os.chdir(folder)
            os.environ["PYTHONPATH"] = str(pathlib.Path(__file__).parent.parent)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored ones are inherited
            python = [sys.executable, "-m", "groupwise", *words_of(variant, out)]
            os.execv(sys.executable, python)
        layer = with_fault(folder / out, fault)
        try:
            run_command(words_of(variant, out), folder)
        finally:
            if counts is not None:
                note_counts(layer, counts)

    def strike(process: int) -> None:
        time.sleep(fault["after"] if fault else 0)
        try:
            os.kill(process, signal.Signals[f"SIG{fault['action']}"] if fault else 0)
        except ProcessLookupError:
            return

    timed = fault is not None and "after" in fault
    return isolated(work, LIMIT, disturb=strike if timed else None)


def is_fresh(variant: str, fault: dict[str, Any] | None) -> bool:
    """Whether a Python of its own runs the command, and imports torch: ranks do so themselves."""
    return variant == "ranks" or (fault is not None and fault.get("fresh", False))


def make_fault(
    variant: str, rng: random.Random, root: pathlib.Path, actions: tuple[str, ...]
) -> dict[str, Any]:
    made = undisturbed(variant, root)
    action = rng.choice(actions)
    if variant == "ranks" or (action in SIGNALS and rng.random() < 0.3):
        return {"action": action, "after": rng.random() * float((made / "seconds").read_text())}
    if action in SIGNALS and rng.random() < 0.1:  # while Python starts and imports
        return {"action": action, "after": START_SECONDS * rng.random() ** 2, "fresh": True}
    counts = json.loads((made / "counts.json").read_text())
    points = [p for p in (WRITES if action in ERRORS else (*WRITES, *CALLS)) if counts.get(p)]
    point = rng.choice(points)
    fault = {"action": action, "point": [point, rng.randint(1, counts[point])]}
    return {**fault, "seconds": rng.choice((-1e6, 1e6, 1e9))} if action == "clock" else fault


def make_kill(rng: random.Random, root: pathlib.Path) -> Case:
    rare = rng.random() < 0.06
    variant = rng.choice(("workers", "ranks") if rare else USUAL)
    times = rng.choice((1, 1, 1, 2, 3))
    faults = [make_fault(variant, rng, root, SIGNALS) for _ in range(times)]
    return Case("kills", {"variant": variant, "faults": faults})


def make_disk(rng: random.Random, root: pathlib.Path) -> Case:
    variant = rng.choice(USUAL)
    story = rng.choice(("writes", "writes", "damage", "damage", "moved", "slow"))
    actions = {"writes": ERRORS, "slow": ("slow", "clock")}.get(story, ("KILL",))
    inputs = {"variant": variant, "faults": [make_fault(variant, rng, root, actions)]}
    if story == "moved":
        inputs["moved"] = "elsewhere"
    if story == "damage":
        inputs["damage"] = [rng.random(), rng.randrange(2**31), rng.randint(1, 4)]
    if rng.random() < 0.1:
        inputs = {"variant": "in_turn", "faults": [], "beside": True}
    return Case("disk", inputs)


def run(case: Case, root: pathlib.Path) -> Outcome:
    inputs = case.inputs
    variant, out = inputs["variant"], "run"
    whole = undisturbed(variant, root) / "run"
    with tempfile.TemporaryDirectory(dir=root, ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        if inputs.get("beside"):
            return _two_trainers(folder, variant, whole)
        for fault in inputs["faults"]:
            before = _files(folder / "run")
            ended = attempt(variant, folder, fault)
            begun = _files(folder / "run") != before
            if is_fresh(variant, fault) and interpreter_was_starting(ended, begun):
                continue
            bad = _judged(ended, fault["action"])
            if bad is not None:
                return bad
        if "moved" in inputs and (folder / "run").exists():
            out = inputs["moved"]
            (folder / "run").rename(folder / out)
        damaged = _damaged(folder / out, inputs["damage"]) if "damage" in inputs else None
        before = _files(folder / out)
        ended = attempt(variant, folder, None, out)
        bad = _judged(ended, "none")
        if bad is not None:
            return bad
        if ended.code == 2:
            # What a cut-short save left is removed at every start (docs/resume.md).
            lost = sorted(n for n in before - _files(folder / out) if ".new/" not in n)
            if not damaged or lost:
                return Outcome("lost", f"refused, without {lost}: {ended.output}")
            return Outcome("refused", f"{damaged}: {ended.output}")
        return compared(folder / out, whole, variant, damaged)


def _two_trainers(folder: pathlib.Path, variant: str, whole: pathlib.Path) -> Outcome:
    """The same command twice at once: one trains, the other is told that the folder is in use."""
    codes = folder / "codes"

    def both() -> None:
        other = os.fork()
        try:
            run_command(words_of(variant), folder)
        finally:
            if other:
                codes.write_text(str(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])))

    ended = isolated(both, LIMIT)
    bad = _judged(ended, "none")
    if bad is not None:
        return bad
    if "in use by another run" not in ended.output and "nothing to do" not in ended.output:
        return Outcome("lost", f"nobody was told: {ended.output}")
    return compared(folder / "run", whole, variant, None)


GOOD_CODES = {
    "KILL": (-9, 0), "TERM": (3, 0, -15), "INT": (3, 0, -2), "none": (0, 2), "slow": (0,),
    "clock": (0,),
}  # fmt: skip


PACKAGE = groupwise.__path__[0]
ENTRY = ("groupwise/__init__.py", "groupwise/__main__.py", "groupwise/cli/signals.py")


def interpreter_was_starting(ended: Ended, begun: bool) -> bool:
    """Whether Python itself said what a SIGINT did to it before a line of ours could handle it.

    Every file of ours that its traceback names is one of ENTRY, whose imports are all that runs
    before that. Nothing may have been made by then and nothing may be left, unless Python has
    swallowed the signal and went on.
    """
    shown = re.findall(r'File "([^"]*)"', ended.output)
    ours = [path for path in shown if path.startswith(PACKAGE)]
    if "KeyboardInterrupt" not in ended.output or any(not path.endswith(ENTRY) for path in ours):
        return False
    ended_by_it = ended.code in (1, 130, -signal.SIGINT) and not begun
    return not (ended.hung or ended.orphans) and (ended_by_it or ended.code == 0)


def _judged(ended: Ended, action: str) -> Outcome | None:
    """What is wrong with how an attempt ended; None where nothing is."""
    if ended.hung:
        return Outcome("hang", ended.output)
    if ended.orphans:
        return Outcome("orphan", "\n".join(ended.orphans) + ended.output)
    if "Traceback (most recent call last)" in ended.output:
        return Outcome("traceback", ended.output)
    if ended.code not in GOOD_CODES.get(action, (0, 2)):
        return Outcome("traceback", f"exit code {ended.code} after {action}\n{ended.output}")
    return None


def _damaged(run: pathlib.Path, how: list[Any]) -> str | None:
    """Change one file of the run folder; its name, None where nothing is there."""
    place, seed, times = how
    files = sorted(_files(run))
    saved = [name for name in files if name.startswith("checkpoints/step-")]
    files = saved if saved and random.Random(seed).random() < 0.7 else files
    if not files:
        return None
    name = files[int(place * len(files))]
    before = (run / name).read_bytes()
    edited(run, [["mutate", name, seed, times]])
    return name if (run / name).read_bytes() != before else None


def _files(run: pathlib.Path) -> set[str]:
    return {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


def compared(run: pathlib.Path, whole: pathlib.Path, variant: str, damaged: str | None) -> Outcome:
    left = [name for name in _files(run) if name.endswith((".new", ".old", ".tmp"))]
    # A stop saves one more checkpoint, so that others are the newest: the last must be there.
    last = f"checkpoints/{max(p.name for p in (whole / 'checkpoints').iterdir())}"
    lost = [
        name
        for name in sorted(_files(whole) - _files(run))
        if not name.startswith("checkpoints/") or name.startswith(last)
    ]
    if variant == "in_flight":  # which steps were best depends on speed there
        lost = [name for name in lost if not name.startswith("best/")]
        problem = _skipped(run)
        if problem:
            return Outcome("lost", problem)
    if (left or lost) and damaged is None:
        return Outcome("lost", f"gone: {lost}; left behind: {left}")
    if variant != "in_flight":
        ours, theirs = fingerprint(run), fingerprint(whole)
        names = [name for name in theirs if ours.get(name) != theirs[name]]
        names = [name for name in names if damaged is None or name == "model"]
        if names:
            return Outcome("hash", f"{', '.join(names)} differ (damaged: {damaged})")
    return Outcome("accepted")


def _skipped(run: pathlib.Path) -> str | None:
    """Whether the problems of a run in flight were each learned from once."""
    newest = max((run / "checkpoints").glob("step-??????"))
    state = json.loads((newest / "state.json").read_text())
    learned = [g["problem"]["id"] for groups in _rollouts(run).values() for g in groups]
    waiting = len(state["open"]) + len(state["complete"])
    if len(set(learned)) < len(learned):
        return f"learned from twice: {sorted(learned)}"
    if len(learned) + waiting != state["cursor"]:
        return f"{len(learned)} learned from, {waiting} wait, {state['cursor']} drawn"
    return None


def _rollouts(run: pathlib.Path) -> dict[str, list[Any]]:
    return {
        path.name: [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for path in sorted((run / "rollouts").glob("*.gz"))
    }


def fingerprint(run: pathlib.Path) -> dict[str, str]:
    """Hashes of all that must not depend on how often a run was stopped."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((run / "summary.json").read_text())
    found = {
        "metrics": _digest([json.loads(line) for line in lines]),
        "rollouts": _digest(_rollouts(run)),
        "before and after": _digest([summary["before"], summary["after"]]),
    }
    for name in ("model", "best"):
        for path in (run / name).glob("*.safetensors"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(_timeless(value), sort_keys=True).encode()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if not k.startswith(CLOCKS)}
    return {name: _timeless(item) for name, item in kept.items()}
