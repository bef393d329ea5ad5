"""What a diagnosis is: a symptom, seen, with its numbers and a remedy."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Finding("no_spread", "Answers hardly differ in reward",
               evidence="92 % of groups scored the same on every answer (steps 1-10)",
               advice="easier problems, or rollout.temperature above 0.7", "warning", step=10)

    `code` names the symptom and never changes; `step` is the one at which it appeared.
    """

    code: str
    title: str
    evidence: str
    advice: str
    severity: Severity
    step: int
