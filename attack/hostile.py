"""Rewards and environments that hang, crash, fork, leak, flood, lie and mutate their inputs.

A short run with one of them must end: by itself, or with one error that names what failed. Nothing
may be left running, and files beside the run stay as they are.
"""

import hashlib
import pathlib
import random
import shutil
import tempfile

from attack.case import Case, Outcome
from attack.commands import SMALL, base, judged, run_command
from attack.isolated import isolated

LIMIT = 150.0
DEEDS = {
    "honest": "pass",
    "raises": "1 / 0",
    "raises something odd": "raise type('X', (BaseException,), {})()",
    "raises without end": "raise RecursionError('x' * 10**7)",
    "exits": "sys.exit(0)",
    "ends its process": "os._exit(0)",
    "kills itself": "os.kill(os.getpid(), 9)",
    "crashes": "ctypes.string_at(0)",
    "hangs": "time.sleep(3600)",
    "hangs in C": "re.match(r'(a+)+$', 'a' * 64 + 'b')",
    "ignores signals": "[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(3600)",
    "forks": "os.fork()",
    "forks and stays": "os.fork() or time.sleep(3600)",
    "leaves a child": "subprocess.Popen(['sleep', '3600'])",
    "leaves a daemon": "subprocess.Popen(['sleep', '3600'], start_new_session=True)",
    "leaves a daemon of nobody": "os.system('env -i setsid sleep 3600 >/dev/null 2>&1 &')",
    "leaves threads": "[threading.Thread(target=time.sleep, args=(99,)).start() for _ in 'x' * 20]",
    "leaks": "LEAK.append(bytearray(20_000_000))",
    "leaks descriptors": "LEAK.extend(open(os.devnull) for _ in range(200))",
    "floods its output": "sys.stdout.write('x' * 1_000_000); sys.stderr.write('y' * 1_000_000)",
    "closes its descriptors": "[os.close(n) for n in range(64) if n > 2 or True]",
    "closes standard input": "os.close(0)",
    "writes to all descriptors": "[os.write(n, b'{}\\n') for n in range(3, 20) if can_write(n)]",
    "changes its folder": "os.chdir('/')",
    "changes the environment": "os.environ.clear()",
    "changes its inputs": "[v.clear() for v in [*columns.values()] if hasattr(v, 'clear')]",
    "breaks json": "import json; json.dumps = json.loads = None",
    "breaks the garbage collector": "gc.disable(); gc.freeze()",
    "sets an alarm": "signal.alarm(1)",
    "lowers its limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "takes all recursion": "sys.setrecursionlimit(50)",
    "prints secrets": "print(dict(os.environ))",
}  # fmt: skip
SCORES = (
    "1.0", "float('nan')", "float('inf')", "1e308", "-1e308", "None", "True", "'1'", "[1.0]", "{}",
    "10**400", "Lies()", "object()", "1 + 2j", "bytes(4)", "-0.0", "5e-324",
)  # fmt: skip
HEAD = """
import asyncio, ctypes, gc, os, re, resource, signal, subprocess, sys, threading, time

LEAK = []

class Lies(float):
    def __float__(self):
        time.sleep(3600)
    def __eq__(self, other):
        raise ValueError

def can_write(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
"""
REWARD = """
def reward(completions, **columns):
    {deed}
    return {score}
"""
EACH = """
def reward(completion, **columns):
    if {when}:
        {deed}
    return {score}
"""
ENVIRONMENT = """
from groupwise.environments.base import Reply

class Environment:
    tools = ()

    def __init__(self, problem):
        self.columns = columns = dict(problem.columns)
        self.turns = 0
        {make}

    async def reset(self, problem, seed):
        columns = self.columns
        {reset}
        return Reply()

    async def step(self, turn):
        self.turns += 1
        columns = self.columns
        {step}
        return {reply}

    async def score(self):
        columns = self.columns
        {score}
        return {{"won": {value}}}

    async def close(self):
        columns = self.columns
        {close}
"""
REPLIES = (
    "Reply(({'role': 'user', 'content': 'go on'},), 0.5, self.turns > 1)",
    "Reply(({'role': 'user', 'content': 'x' * 3_000_000},))", "None", "'x'",
    "Reply(({'role': 'nobody', 'content': None},))", "Reply(7)", "Reply((), Lies())",
    "Reply(({'role': 'user', 'content': '<|im_end|>' * 50},), float('nan'))",
)  # fmt: skip


def make(kind: str, rng: random.Random, root: pathlib.Path) -> Case:
    deed, score = rng.choice(list(DEEDS)), rng.choice((*("1.0",) * 20, *SCORES))
    error = rng.choice(("stop", "skip"))
    if kind == "rewards":
        way = rng.random()
        if way < 0.4:
            values = rng.choice((f"[{score}] * len(completions)", score, f"[{score}]", "iter([])"))
            source = REWARD.format(deed=DEEDS[deed], score=values)
        else:
            when = rng.choice(("True", "len(completion) % 2", "'1' in completion"))
            source = EACH.format(deed=DEEDS[deed], score=score, when=when)
        words = ["rewards=[correct, bad.py:reward]", f"on_reward_error={error}", "reward_timeout=2"]
        return Case(kind, {"deed": deed, "source": HEAD + source, "words": words})
    places: dict[str, str] = dict.fromkeys(("make", "reset", "step", "score", "close"), "pass")
    places[rng.choice([*places, "step", "step"])] = DEEDS[deed]
    reply = rng.choice((*(REPLIES[0],) * 8, *REPLIES))
    source = ENVIRONMENT.format(**places, reply=reply, value=score)
    words = [
        "environment=bad.py:Environment", "environment.step_seconds=2", "environment.max_turns=2",
        "environment.episode_seconds=4", "environment.max_reply_tokens=64",
        "rollout.max_completion_tokens=48",
    ]  # fmt: skip
    return Case(kind, {"deed": deed, "source": HEAD + source, "words": words})


def run(case: Case, root: pathlib.Path) -> Outcome:
    with tempfile.TemporaryDirectory(dir=root, ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        shutil.copytree(base("empty", root), folder, dirs_exist_ok=True)
        (folder / "bad.py").write_text(case.inputs["source"])
        (folder / "precious.txt").write_text("precious")
        words = [*SMALL, "steps=2", "eval.problems=2", "eval.k=1", *case.inputs["words"]]
        words = ["train", *words, "--out", "run", "--quiet"]
        before = _digests(folder)
        ended = isolated(lambda: run_command(words, folder), LIMIT)
        after = _digests(folder)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    if changed:
        return Outcome("lost", f"changed: {changed}\n{ended.output}")
    return judged(ended)


def _digests(folder: pathlib.Path) -> dict[str, str]:
    paths = [folder / "bad.py", folder / "precious.txt"]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths if p.is_file()}
