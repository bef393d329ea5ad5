"""python -m attack: run kept cases, then new ones of each kind, and say what came of them."""

import argparse
import importlib
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from attack.case import BAD, Case, Outcome, kept_cases, read_case, write_case

HEADS = {
    "refused": "clean errors", "accepted": "accepted", "traceback": "tracebacks", "hang": "hangs",
    "orphan": "orphans", "hash": "other hashes", "lost": "lost files",
}  # fmt: skip
PRELOADED = (
    "groupwise.cli.main", "groupwise.check.plan", "groupwise.check.show", "groupwise.training.api",
    "groupwise.explain.page", "groupwise.explain.replay", "groupwise.explain.terminal",
    "groupwise.interop.folder", "groupwise.interop.import_trl", "groupwise.interop.trl",
    "groupwise.report.compare", "groupwise.rewards.bench", "groupwise.samples.show", "peft",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip
"""Imported once here instead of in every case, which is a fork of this process."""
KEPT = pathlib.Path(__file__).parent / "kept"


@dataclass(frozen=True)
class Kind:
    """How many cases the standard campaign and the small one have, and how they are made and run.

    `make(rng, root)` draws a case, `run(case, root)` tries it; `root` is a folder for both.
    """

    standard: int
    small: int
    make: Callable[[random.Random, pathlib.Path], Case]
    run: Callable[[Case, pathlib.Path], Outcome]


def kinds() -> dict[str, Kind]:
    """Imported late: torch takes seconds, and `--help` should not."""
    from attack import bodies, commands, hostile, servers, trials

    sizes = {"recipes": (600, 60), "overrides": (600, 60), "data": (150, 8), "runs": (150, 8),
             "models": (100, 6), "templates": (100, 6)}  # fmt: skip
    mutated = {
        name: Kind(*sizes[name], partial(commands.make, name), commands.run)
        for name in commands.MAKERS
    }
    return {
        **mutated,
        "bodies": Kind(300, 20, bodies.make, bodies.run),
        "kills": Kind(100, 30, trials.make_kill, trials.run),
        "disk": Kind(60, 4, trials.make_disk, trials.run),
        "rewards": Kind(40, 3, partial(hostile.make, "rewards"), hostile.run),
        "environments": Kind(30, 2, partial(hostile.make, "environments"), hostile.run),
        "servers": Kind(8, 0, servers.make, servers.run),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--kinds", default="all", help="recipes,kills ...; all")
    parser.add_argument("--count", type=int, help="new cases of each kind")
    parser.add_argument("--minutes", type=float, default=600.0, help="no new case after so long")
    parser.add_argument("--small", action="store_true", help="some cases of each kind, for CI")
    parser.add_argument("--failures", type=pathlib.Path, default=pathlib.Path("runs/attack"))
    parser.add_argument("--replay", type=pathlib.Path, nargs="+", help="run these case files only")
    return parser.parse_args()


def prepare() -> None:
    """One thread, no network, no cache of the user's; Ctrl-C and SIGTERM end with the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("GROUPWISE_CACHE", str(pathlib.Path(tempfile.gettempdir()) / "no-models"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import torch

    from attack.isolated import adopt_orphans

    torch.set_num_threads(1)
    for module in PRELOADED:
        importlib.import_module(module)
    adopt_orphans()


def drawn(
    known: dict[str, Kind], asked: argparse.Namespace, names: list[str], root: pathlib.Path
) -> Iterator[Case]:
    """Kept cases, then new ones: kinds take turns, so that each has its share of the time."""
    deadline = time.monotonic() + 60 * asked.minutes
    yield from kept_cases(KEPT, names)
    counts = {
        name: asked.count or (known[name].small if asked.small else known[name].standard)
        for name in names
    }
    turns = [(n / count, name, n) for name, count in counts.items() for n in range(count)]
    for _, name, number in sorted(turns):
        if time.monotonic() > deadline:
            return
        yield known[name].make(random.Random(f"{asked.seed} {name} {number}"), root)


def try_all(
    cases: Iterable[Case], known: dict[str, Kind], asked: argparse.Namespace, root: pathlib.Path
) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in known}
    began, done = time.monotonic(), 0
    try:
        for case in cases:
            outcome = known[case.kind].run(case, root)
            counts[case.kind][outcome.verdict] += 1
            done += 1
            if not outcome.good and not asked.replay:
                path = write_case(case, outcome, asked.failures)
                print(f"{outcome.verdict}: python -m attack --replay {path}", flush=True)
            if asked.replay:
                print(f"{case.name}: {outcome.verdict}\n{outcome.detail[-6000:]}")
            if sys.stderr.isatty() or done % 100 == 0:
                end = "\r" if sys.stderr.isatty() else "\n"
                line = f"{done} cases in {time.monotonic() - began:.0f} s, {case.kind}"
                print(f"{line:60}", end=end, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped")
    return counts


def table(counts: dict[str, Counter[str]]) -> str:
    rows = [["", "cases", *HEADS.values()]]
    for name, count in counts.items():
        rows.append([name, str(count.total()), *(str(count[verdict]) for verdict in HEADS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        row[0].ljust(widths[0])
        + "".join(cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )


def main() -> None:
    asked = arguments()
    prepare()
    known = kinds()
    names = list(known) if asked.kinds == "all" else asked.kinds.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no kind {unknown[0]!r}; there are: {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as temporary:
        root = pathlib.Path(temporary)
        cases = map(read_case, asked.replay) if asked.replay else drawn(known, asked, names, root)
        counts = try_all(cases, known, asked, root)
    print(table({name: count for name, count in counts.items() if count}))
    missed = {verdict: sum(count[verdict] for count in counts.values()) for verdict in BAD}
    if any(missed.values()):
        print("missed: " + ", ".join(f"{n} {HEADS[v]}" for v, n in missed.items() if n))
        sys.exit(1)
    print("no traceback, hang, orphan, differing hash or lost file")


if __name__ == "__main__":
    main()
