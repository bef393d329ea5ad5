"""The child process: measure one kind at some settings, one line of JSON for each as it is done.

    python -m sidebyside.measure KIND SETTINGS.json RESULTS.jsonl

A kind has a process of its own, so that its peak memory is its own and nothing leaks into another.
"""

import gc
import json
import pathlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from sidebyside.settings import Failure, Measurement, Setting


def measurer(kind: str) -> Callable[[Setting, str], Measurement]:
    """The module is imported here: no kind pays for the imports of another."""
    if kind == "generate":
        from sidebyside import alone

        return alone.measure
    if kind == "vllm":
        from sidebyside import served

        return served.measure
    if kind.startswith("groupwise"):
        from sidebyside import ours

        return ours.measure
    from sidebyside import theirs

    lacking = theirs.missing(kind)
    if lacking is not None:
        raise ModuleNotFoundError(f"{lacking} is not installed")
    return theirs.measure


def run(kind: str, setting: Setting) -> Measurement | Failure:
    """Whatever goes wrong in one measurement, the next one is still made."""
    try:
        return measurer(kind)(setting, kind)
    except ModuleNotFoundError as error:
        return Failure(kind, setting, str(error))
    except Exception as error:
        traceback.print_exc()
        reason = str(error).strip().splitlines() or [""]
        return Failure(kind, setting, f"{type(error).__name__}: {reason[0][:200]}")


def machine(device: str, model: str) -> dict[str, Any]:
    """What the floor and the record need to know, measured here and now."""
    from groupwise.check.peak import measure_peak
    from sidebyside import models
    from sidebyside.describe import describe_machine

    setting = Setting(device, model, 1, 2, 4, 4)
    return {
        "peak": asdict(measure_peak(device)),
        "size": asdict(models.size(models.build(setting)[0])),
        **describe_machine(device),
    }


def main(kind: str, settings: pathlib.Path, results: pathlib.Path) -> None:
    with results.open("a") as file:
        for data in json.loads(settings.read_text()):
            setting = Setting(**data)
            if kind == "machine":
                line = machine(setting.device, setting.model)
            else:
                line = asdict(run(kind, setting))
            file.write(json.dumps(line) + "\n")
            file.flush()
            gc.collect()
            if setting.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
