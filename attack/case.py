"""A case, what came of it, and how both are stored."""

import hashlib
import json
import pathlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

CHECKOUT = f"{pathlib.Path(__file__).resolve().parent.parent}/"
GOOD = ("accepted", "refused")
BAD = ("traceback", "hang", "orphan", "hash", "lost")
"""What misses the bar. hash: other weights than an undisturbed run; lost: a file or a prompt."""


@dataclass(frozen=True)
class Case:
    """Case("recipes", {"edits": [...], "words": ["check", "recipe.yaml"]}): JSON values only."""

    kind: str
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Outcome:
    verdict: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.verdict in GOOD


def write_case(case: Case, outcome: Outcome, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name}.json"
    detail = outcome.detail.replace(CHECKOUT, "")  # where it lies is nobody else's matter
    if len(detail) >= 8000:
        detail = f"{detail[:4000]}\n...\n{detail[-4000:]}"
    stored = {**asdict(case), "verdict": outcome.verdict, "detail": detail}
    path.write_text(json.dumps(stored, indent=1) + "\n")
    return path


def read_case(path: pathlib.Path) -> Case:
    stored = json.loads(path.read_text())
    return Case(stored["kind"], stored["inputs"])


def kept_cases(folder: pathlib.Path, kinds: Iterable[str]) -> list[Case]:
    wanted = set(kinds)
    cases = [read_case(path) for path in sorted(folder.glob("*.json"))]
    return [case for case in cases if case.kind in wanted]
