"""Opening a file of a run folder: only a plain file, and never one that keeps us waiting."""

import os
import pathlib
import stat
from typing import BinaryIO


def open_stored(path: pathlib.Path) -> BinaryIO:
    """The file for reading. A folder, a pipe, a device or a link counts as missing."""
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{path.name} cannot be opened") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path.name} is not a file")
    return os.fdopen(descriptor, "rb")
