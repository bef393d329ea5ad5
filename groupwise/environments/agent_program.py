"""An agent that is a program: started once for each episode, ended with all that it started.

It gets the problem as JSON on standard input, and in the file that GROUPWISE_PROBLEM names:

    {"id": "3+4", "prompt": [{"role": "user", "content": ...}], "columns": {...}, "seed": 7}

and finds the model at OPENAI_BASE_URL with OPENAI_API_KEY. What it prints last may be its reward.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.environments.base import EnvironmentFailed
from groupwise.errors import ConfigError, quoted
from groupwise.rewards.supervised import Lifeline
from groupwise.secrets import masked
from groupwise.types import Problem

PROBLEM_ENV = "GROUPWISE_PROBLEM"
KEPT_BYTES = 65536
"""Of what a program prints: the last of it."""
DRAIN_SECONDS = 0.5
"""To read what is left in its pipes."""
POLL_SECONDS = 0.1


class ProgramAgent:
    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        if not self.command:
            raise ConfigError("an agent needs a command: a program and its arguments")
        if shutil.which(self.command[0]) is None:
            raise ConfigError(
                f"environment.command: there is no program {quoted(self.command[0], 80)}. Give its "
                "path, or a name that can be found in PATH"
            )

    async def run(self, base_url: str, api_key: str, problem: Problem, seed: int) -> Any:
        """The JSON object in the last line that it printed, if it is one.

        Raises EnvironmentFailed if the program fails. Cancelled, it ends the program.
        """
        with tempfile.TemporaryDirectory(prefix="groupwise-agent-") as folder:
            file = Path(folder) / "problem.json"
            file.write_text(_as_json(problem, seed), encoding="utf-8")
            code, out, err = await self._finished(_variables(base_url, api_key, file), file)
        if code != 0:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            said = err.decode("utf-8", "replace").strip()
            last = f": {quoted(masked(said[-300:], api_key), 400)}" if said else ""
            raise EnvironmentFailed(f"the program {how}{last}")
        return _last_object(out)

    async def _finished(
        self, variables: Mapping[str, str], file: Path
    ) -> tuple[int, bytearray, bytearray]:
        """Its exit code, and the last that it printed to standard output and error."""
        out, err, lifeline = bytearray(), bytearray(), Lifeline()
        try:
            with file.open("rb") as problem:
                process = await asyncio.create_subprocess_exec(
                    *lifeline.command(self.command),
                    stdin=problem,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=variables,
                    pass_fds=(lifeline.watched,),
                    start_new_session=True,
                )
        except BaseException as error:
            lifeline.cut()
            if isinstance(error, OSError):
                raise EnvironmentFailed(f"the program cannot be started: {error}") from error
            raise
        finally:
            lifeline.started()
        assert process.stdout is not None and process.stderr is not None
        pairs = ((process.stdout, out), (process.stderr, err))
        readers = [asyncio.create_task(_keep_last(*pair)) for pair in pairs]
        try:
            code = await _exit_code(process)
        finally:
            lifeline.cut()
            await _exit_code(process)
            await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for reader in readers:
                reader.cancel()
        return code, out, err


async def _exit_code(process: asyncio.subprocess.Process) -> int:
    """Looked for: asyncio's own `wait` also waits for whoever still holds the program's pipes."""
    while process.returncode is None:
        await asyncio.sleep(POLL_SECONDS)
    return process.returncode


async def _keep_last(stream: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await stream.read(KEPT_BYTES):
        kept += chunk
        del kept[:-KEPT_BYTES]


def _variables(base_url: str, api_key: str, file: Path) -> dict[str, str]:
    """Our own environment, with where the model is; a proxy has no business with that."""
    own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key, PROBLEM_ENV: str(file)}
    for name in ("NO_PROXY", "no_proxy"):
        own[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    return {**os.environ, **own}


def _as_json(problem: Problem, seed: int) -> str:
    prompt = problem.prompt
    data = {
        "id": problem.id,
        "prompt": prompt if isinstance(prompt, str) else [dict(message) for message in prompt],
        "columns": dict(problem.columns),
        "seed": seed,
    }
    return json.dumps(data, default=str)


def _last_object(printed: bytearray) -> dict[str, Any] | None:
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
