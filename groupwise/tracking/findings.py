"""Findings on their way to people: a line in findings.jsonl, and one in the log and the console."""

import json
import logging
import pathlib
from collections.abc import Iterable
from dataclasses import asdict

from groupwise.diagnose import Finding, FindingChange

log = logging.getLogger("groupwise")

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.WARNING}


def note(changes: Iterable[FindingChange], folder: pathlib.Path) -> None:
    """Say what appeared and what is gone, once each. What cannot be written stops no training."""
    for change in changes:
        line = {**asdict(change.finding), "step": change.step, "gone": change.gone}
        try:
            with (folder / "findings.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("findings.jsonl cannot be written: %s", error)
        if change.gone:
            log.info("step %d: gone: %s", change.step, change.finding.title)
        else:
            level = LEVELS[change.finding.severity]
            log.log(level, "step %d: %s", change.step, in_words(change.finding))


def in_words(finding: Finding) -> str:
    return f"{finding.title}. {_sentence(finding.evidence)}. Try: {finding.advice}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
