"""Which folder or hub id a `model:` string means. Loads nothing and imports no torch.

A name of ours comes first, then a folder that exists (a model, or a run with its model inside),
then the hub. `./tiny` is how to mean a folder that has one of our names.
"""

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path

from groupwise.errors import ModelError
from groupwise.policy.smollm2 import smollm2_folder

TINY = Path(__file__).parent / "tiny"
TINY_TOOLS = Path(__file__).parent / "tiny_tools"

NAMES: dict[str, Callable[[], Path]] = {
    "tiny": lambda: TINY,
    "tiny_tools": lambda: TINY_TOOLS,
    "smollm2": smollm2_folder,
}
"""Names of ours -> the folder, which may be downloaded first."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
IN_RUN_FOLDER = ("model", "best", "checkpoints")
CONFIGS = ("config.json", "adapter_config.json")
"""What makes a folder a model: of its own, or an adapter to one."""


def resolve_model(name: str) -> str:
    """resolve_model("tiny"), ("smollm2"), ("org/name"), ("path/to/model"), ("path/to/run")"""
    if name in NAMES:
        return str(NAMES[name]())
    path = Path(os.path.expanduser(name))
    if name.strip() and path.exists():
        return str(_model_in(path))
    looks_like_path = name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name
    if looks_like_path or not HUB_ID.fullmatch(name):
        raise ModelError(
            f"the model folder {name!r} does not exist, and it is no hub id (owner/name) either; "
            f"model: takes {', '.join(NAMES)}, a folder or a hub id"
        )
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.75)
    if near:
        raise ModelError(f"there is no model {name!r}; did you mean {near[0]!r}?")
    return name


def is_run_folder(path: Path) -> bool:
    return (path / "config.yaml").is_file() and any((path / sub).is_dir() for sub in IN_RUN_FOLDER)


def _model_in(path: Path) -> Path:
    if not path.is_dir():
        raise ModelError(f"model {path} is a file; name the Hugging Face folder that holds it")
    if _holds_model(path):
        return path
    if not is_run_folder(path):
        raise ModelError(
            f"{path} has no config.json, so it is no Hugging Face model folder; "
            "name the folder that holds config.json and the weights"
        )
    if _holds_model(path / "model"):
        return path / "model"
    best = path / "best"
    other = f", or use {best}" if _holds_model(best) else ""
    raise ModelError(
        f"the run {path} has no final model/ yet: run its train command again to finish it{other}"
    )


def _holds_model(path: Path) -> bool:
    return any((path / name).is_file() for name in CONFIGS)
