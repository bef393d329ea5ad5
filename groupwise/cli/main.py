"""The command line: every command is registered, errors become exit codes."""

import errno
import importlib
import logging
import os
import sys
import tempfile
from typing import NoReturn

from rich.logging import RichHandler

from groupwise.cli.app import app
from groupwise.errors import (
    STOPPED_AT_ONCE,
    GroupwiseError,
    Interrupted,
    RankLost,
    is_out_of_memory,
    is_panic,
    shortened,
)
from groupwise.secrets import masked

# Importing a module adds its commands to the application: the order here is that of the help.
COMMANDS = ("train", "models", "recipes", "runs", "reward", "environment", "serve")
for name in COMMANDS:
    importlib.import_module(f"groupwise.cli.{name}")


TYPER_INTERRUPTED = 130
"""The code that typer exits with after Ctrl-C, in silence."""

# Of a file or folder that the user named: nothing of ours is called so or lies there.
USERS_TO_FIX = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR,
                errno.ELOOP, errno.EROFS)  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _mask(record: logging.LogRecord) -> bool:
    record.msg, record.args = masked(record.getMessage()), None
    return True


OUT_OF_MEMORY = (
    "this machine, its GPU or its `ulimit -v` has too little memory: free some, lower "
    "batch.tokens_per_microbatch, or take a smaller model. The last checkpoint is kept"
)


def _leave_full(error: OSError) -> NoReturn:
    """Where the output goes, or the temporary folder. What is still to be printed is let go."""
    where = shortened(str(error.filename or f"the output or {tempfile.gettempdir()}"))
    print(f"error: cannot write to {where}: {error.strerror}; free some space", file=sys.stderr)
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(2)


def main() -> None:
    # Threads that spin long while they wait make a busy machine several times slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # GNU's OpenMP: some microseconds
    handler = RichHandler(show_time=False, show_path=False, markup=False)
    handler.addFilter(_mask)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("groupwise").setLevel(logging.INFO)
    try:
        app(standalone_mode=True)
    except GroupwiseError as error:
        print(f"error: {masked(str(error))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno in NO_ROOM:
            _leave_full(error)
        if error.errno not in USERS_TO_FIX or error.filename is None:
            raise
        name = masked(shortened(str(error.filename)))
        print(f"error: cannot use {name}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"error: {OUT_OF_MEMORY} ({shortened(str(error)) or 'none left'})", file=sys.stderr)
        sys.exit(2)
    except RankLost as lost:
        print(f"error: {lost}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as left:
        if left.code != TYPER_INTERRUPTED:
            raise
        stopped = left.__context__ and left.__context__.__cause__
        told = isinstance(stopped, Interrupted)
        print(stopped if told else STOPPED_AT_ONCE, file=sys.stderr)
        sys.exit(3)
    except BaseException as error:
        if not is_panic(error):
            raise
        reason = masked(shortened(str(error)))
        print(f"error: the model's tokenizer cannot be used: {reason}", file=sys.stderr)
        sys.exit(2)
