"""log.txt of a run: what groupwise says, and what the libraries below it warn of.

A command that trains keeps the libraries' warnings off the screen (`libraries_off_screen`): nobody
can act on most of them, and they bury what is meant for people. Their errors are still shown.
"""

import contextlib
import logging
import logging.handlers
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from groupwise.errors import Interrupted, RunFolderError
from groupwise.secrets import masked

NAME = "log.txt"
MOST_BYTES = 10_000_000
"""Then it becomes log.txt.1, and the one before that goes."""
LIBRARIES = ("transformers", "datasets", "huggingface_hub", "peft", "accelerate")
"""Those whose loggers may have handlers of their own, which write to the screen."""

_early = logging.handlers.MemoryHandler(capacity=1000, flushLevel=logging.CRITICAL + 1)
"""What was said before there was a folder to write it to."""


def libraries_off_screen() -> None:
    """The screen shows what groupwise says, and errors; warnings of others wait for log.txt."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.addFilter(_is_for_people)
    logging.captureWarnings(True)
    root.addHandler(_early)


def _is_for_people(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "groupwise" or record.levelno >= logging.ERROR


@contextmanager
def logging_to(folder: pathlib.Path) -> Iterator[None]:
    """Everything that is logged meanwhile is in the folder's log.txt too, and why it ended."""
    root, path = logging.getLogger(), folder / NAME
    file = _File(path, maxBytes=MOST_BYTES, backupCount=1, delay=True, encoding="utf-8")
    file.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(file)
    if _early in root.handlers:
        _early.setTarget(file)
        _early.flush()
        root.removeHandler(_early)
        _send_libraries_to_root()
    try:
        yield
    except Interrupted as stopped:
        file.handle(_record(logging.INFO, str(stopped)))
        raise
    except RunFolderError:  # the folder is another's, or damaged: it stays as it is
        raise
    except Exception as error:
        file.handle(_record(logging.ERROR, "the run ended by an error", error))
        raise
    finally:
        root.removeHandler(file)
        file.close()


def _record(level: int, text: str, error: Exception | None = None) -> logging.LogRecord:
    why = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("groupwise", level, __file__, 0, text, None, why)


class _File(logging.handlers.RotatingFileHandler):
    """A log that cannot be written stops no training."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """By default a traceback on the screen."""


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def _send_libraries_to_root() -> None:
    for name in LIBRARIES:
        if name in sys.modules:
            logger = logging.getLogger(name)
            for handler in tuple(logger.handlers):
                logger.removeHandler(handler)
            logger.propagate = True
