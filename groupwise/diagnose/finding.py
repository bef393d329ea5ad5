"""What a diagnosis is: a symptom, seen, with its numbers and a remedy."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Finding("Answers hardly differ in reward",
               evidence="92 % of groups scored the same on every answer (steps 1-10)",
               advice="easier problems, or rollout.temperature above 0.7",
               severity="warning", code="no_spread", step=10)

    `code` names the symptom and never changes; `step` is the one at which it appeared. A symptom
    leaves both to `Watch`.
    """

    title: str
    evidence: str
    advice: str
    severity: Severity = "warning"
    code: str = ""
    step: int = 0


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Most severe first; equally severe ones stay in their order."""
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))
