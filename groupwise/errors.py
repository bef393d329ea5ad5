"""Errors that a user can fix. The command line prints their message alone and exits with code 2.

Everything else that escapes is a bug of ours: it keeps its traceback and exits with code 1.
"""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks a command to stop: Ctrl-C, and what `kill` and job schedulers send."""


class GroupwiseError(ValueError):
    """Something the user can fix; the message says what is wrong, why, and the fix."""

    def _render_traceback_(self) -> list[str]:
        """What notebooks show: our own frames would bury the message."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(GroupwiseError):
    """A recipe, an override or a combination of settings that cannot work."""


class DataError(GroupwiseError):
    """A dataset that is missing, empty, or lacks a column."""


class ModelError(GroupwiseError):
    """A model that cannot be found, loaded or served."""


class EngineGoneError(ModelError):
    """Nothing is left that could sample; what was trained so far is whole and can be saved."""


class RewardError(GroupwiseError):
    """A reward function that raised, hung, or returned something that is not a score."""


class RunFolderError(GroupwiseError):
    """A run folder that belongs to another config, or that cannot be written."""


class MissingExtraError(GroupwiseError):
    """An optional package is needed: the message is the install command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'groupwise[{extra}]'"
        )


STOPPED_AT_ONCE = "stopped at once; what was saved is kept"


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the checkpoint is saved. The command line exits with code 3.

    No Exception: nothing on the way may take it for an error of its own, and asyncio lets it out
    of its tasks.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class RankLost(Exception):
    """Another process of the run is gone. The command line prints the message and exits with 1."""


def is_out_of_memory(error: BaseException) -> bool:
    """Of the machine or its GPU. torch and libraries in C raise RuntimeErrors of their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "allocate memory" in str(error)


def is_panic(error: BaseException) -> bool:
    """Of a library in Rust, as tokenizers is: no Exception, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


def type_name(value: object) -> str:
    """What a value is, to be part of a message: "a dict", "an int", "None"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def quoted(text: str, length: int = 200) -> str:
    """A quoted text without control characters, of bounded length, to be part of a message."""
    if len(text) <= length:
        return ascii(text) if not text.isprintable() else repr(text)
    half = length // 2
    head, tail = quoted(text[:half], length), quoted(text[-half:], length)
    return f"{head} … {tail} ({len(text)} characters)"


def shortened(text: str, length: int = 200) -> str:
    """The text as it is where it is short and printable, else quoted."""
    return text if len(text) <= length and text.isprintable() else quoted(text, length)
