"""Compile the package's C code for this machine, and cache the library between runs."""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ())
"""The first of these that the compiler takes."""
SECONDS = 120


class NoLibraryError(Exception):
    """Why the library cannot be compiled or loaded."""


def load_library(name: str) -> ctypes.CDLL:
    """The library compiled from this file. Raises NoLibraryError."""
    try:
        return ctypes.CDLL(str(_library(name)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise NoLibraryError(str(error)) from error


def _library(name: str) -> Path:
    source = Path(__file__).with_name(name)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc"))), None)
    if compiler is None:
        raise RuntimeError("there is no C compiler")
    names = (source.read_bytes(), compiler, _version(compiler), FLAGS, MACHINE_FLAGS, _processor())
    fingerprint = hashlib.sha256(repr(names).encode()).hexdigest()[:20]
    library = _folder() / f"{source.stem}-{fingerprint}.so"
    if not library.exists():
        _compile(compiler, source, library)
    return library


def _compile(compiler: str, source: Path, library: Path) -> None:
    """Written aside, then renamed: other processes may do the same at the same time."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made, message = Path(folder) / library.name, ""
        for flags in MACHINE_FLAGS:
            command = [compiler, *FLAGS, *flags, str(source), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            if done.returncode == 0:
                made.replace(library)
                return
            message = done.stderr.strip()[:200]
        raise RuntimeError(f"{compiler} cannot compile {source.name}: {message}")


def _folder() -> Path:
    """The cache folder. Nobody but this user may write to it: its libraries are loaded."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "groupwise" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(f"{folder} may be written to by others")
    return folder


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=SECONDS)
    return done.stdout


def _processor() -> str:
    """A folder may be shared by machines whose processors have other instructions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    known = ("flags", "Features", "model name", "CPU part")
    return "\n".join([platform.machine(), *sorted({x for x in lines if x.startswith(known)})])
