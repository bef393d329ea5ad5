"""`--nproc N`: the same command as N ranks on this machine, watched until the last has ended.

Rank 0 has the terminal; what the others print goes to files, whose last lines are shown if one of
them is the first to fail. Signals are forwarded to every rank, which then agree on where to stop.
When a rank dies the others are given `GRACE` seconds to notice, and are then ended too. When this
process itself dies, the ranks see their end of a pipe close and stop as if they had been asked to.
"""

import contextlib
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from groupwise.errors import STOP_SIGNALS

STOPPED = (3, *(-number for number in STOP_SIGNALS))
"""How a rank ends that was asked to stop: by the signal itself where its training was over."""
GRACE = 20.0
"""Seconds that the others have to end by themselves after a rank failed."""
PIPE = "GROUPWISE_LAUNCHER_PIPE"
TAIL = 15
"""Lines of a failed rank's output that are shown."""


@dataclass(frozen=True)
class EndedRank:
    """A rank's exit code; a negative one is a signal's number."""

    rank: int
    code: int


def launch(arguments: Sequence[str], count: int) -> int:
    """Run `groupwise ARGUMENTS` as `count` ranks. The exit code that stands for all of them."""
    command = [sys.executable, "-m", "groupwise", *arguments]
    alive, kept_open = os.pipe()
    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder, _pipe(alive, kept_open):
        outputs = [pathlib.Path(folder) / f"rank-{rank}.txt" for rank in range(count)]
        port = _free_port()
        with _held_back_signals() as before:
            ranks = [
                _start(command, rank, count, port, alive, outputs[rank] if rank else None)
                for rank in range(count)
            ]
            with _forwarded_signals(ranks) as forwarded:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                ended = _wait(ranks)
        return _exit_code(ended, outputs, stopped=bool(forwarded))


def _start(
    command: Sequence[str],
    rank: int,
    count: int,
    port: int,
    alive: int,
    output: pathlib.Path | None,
) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // count)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        PIPE: str(alive),
    }
    # A session of its own: Ctrl-C reaches the ranks once, through us, and not twice.
    with output.open("wb") if output else contextlib.nullcontext() as file:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=file,
            pass_fds=(alive,),
            start_new_session=True,
        )


@contextlib.contextmanager
def _held_back_signals() -> Iterator[set[int]]:
    """Which were held back before. Ranks inherit it, and let them in when they can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _forwarded_signals(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Those that have been forwarded so far."""
    forwarded: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        forwarded.append(number)
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    before = {n: signal.signal(n, forward) for n in STOP_SIGNALS}
    try:
        yield forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> list[EndedRank]:
    """Until all have ended; those that outlive a failed one for too long are killed."""
    over: queue.Queue[EndedRank] = queue.Queue()

    def watch(rank: int, process: subprocess.Popen[bytes]) -> None:
        over.put(EndedRank(rank, process.wait()))

    for rank, process in enumerate(ranks):
        threading.Thread(target=watch, args=(rank, process), daemon=True).start()
    ended: list[EndedRank] = []
    while len(ended) < len(ranks):
        failed = any(one.code for one in ended)
        try:
            ended.append(over.get(timeout=GRACE if failed else None))
        except queue.Empty:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
    return ended


def _exit_code(
    ended: Sequence[EndedRank], outputs: Sequence[pathlib.Path], *, stopped: bool
) -> int:
    """0, 2 and 3 where that is what happened; else 1, with what is known about the first failure.

    A rank that ends with an error that the user can fix ends the others: its code counts. Ranks
    that are stopped before they have met do not wait for each other: the first one's code counts.
    """
    failed = [one for one in ended if one.code]
    if not failed:
        return 0
    first = next((one for one in failed if one.code == 2), failed[0])
    if first.code == 3 and (stopped or all(one.code == 3 for one in ended)):
        return 3
    if stopped and all(one.code in STOPPED for one in failed):
        return 3
    if first.rank and first.code > 0:
        _show(first, outputs)
    if first.code == 2:
        return 2
    how = signal.Signals(-first.code).name if first.code < 0 else f"exit code {first.code}"
    print(
        f"error: rank {first.rank} of {len(ended)} ended first, with {how}, and the run with it. "
        "The same command goes on from the last checkpoint",
        file=sys.stderr,
    )
    return 1


def _show(one: EndedRank, outputs: Sequence[pathlib.Path]) -> None:
    lines = outputs[one.rank].read_text(errors="replace").splitlines()[-TAIL:]
    print("\n".join(f"[rank {one.rank}] {line}" for line in lines), file=sys.stderr)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _pipe(*ends: int) -> Iterator[None]:
    try:
        yield
    finally:
        for end in ends:
            os.close(end)


def stop_with_launcher() -> None:
    """In a rank: ask ourselves to stop when the process that launched us is gone."""
    end = os.environ.pop(PIPE, None)
    if end is None:
        return

    def wait() -> None:
        os.read(int(end), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
