"""When a finding appears, and when it is gone.

Symptoms look at means over several steps, have a wider limit for staying than for appearing, and
must be absent for some steps before they count as gone. So nothing flickers: a number that hovers
around a limit gives one message, not fifty.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.config import Config
from groupwise.diagnose.answers import eos_never, length_collapse, length_explosion, truncated
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import WINDOW, History
from groupwise.diagnose.learning import (
    entropy_collapse,
    kl_blowup,
    learning_rate_high,
    learning_rate_low,
    sampler_gap,
)
from groupwise.diagnose.rewards import (
    format_never_found,
    no_spread,
    one_reward_dominates,
    reward_hacking,
    saturated,
)
from groupwise.diagnose.speed import slow_phase

Symptom = Callable[[History, Config | None, bool], Finding | None]
"""(history, config, whether it stands already) -> the finding at the history's last step."""

# Causes before their consequences: among equally grave findings this is the order of telling.
SYMPTOMS: dict[str, Symptom] = {
    "eos_never": eos_never,
    "truncated": truncated,
    "format_never_found": format_never_found,
    "no_spread": no_spread,
    "reward_saturated": saturated,
    "entropy_collapse": entropy_collapse,
    "kl_blowup": kl_blowup,
    "length_explosion": length_explosion,
    "length_collapse": length_collapse,
    "one_reward_dominates": one_reward_dominates,
    "reward_hacking": reward_hacking,
    "sampler_gap": sampler_gap,
    "learning_rate_high": learning_rate_high,
    "learning_rate_low": learning_rate_low,
    "slow_phase": slow_phase,
}

GONE_AFTER = WINDOW
"""Steps without a symptom after which its finding is gone."""


@dataclass(frozen=True)
class Change:
    """A finding that appeared at `step`, or one that is gone since."""

    finding: Finding
    step: int
    gone: bool = False


class Watch:
    """Watch(config).add(row) tells what changed; `standing` is what holds now."""

    def __init__(
        self, config: Config | None = None, metrics: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.config = config
        self.history = History()
        self._standing: dict[str, Finding] = {}
        self._absent: dict[str, int] = {}
        for row in metrics:
            self.add(row)

    @property
    def standing(self) -> list[Finding]:
        """Findings that hold now, gravest first."""
        order = ("error", "warning", "info")
        told = [self._standing[code] for code in SYMPTOMS if code in self._standing]
        return sorted(told, key=lambda found: order.index(found.severity))

    def add(self, row: Mapping[str, Any]) -> list[Change]:
        self.history.add(row)
        changes: list[Change] = []
        for code, symptom in SYMPTOMS.items():
            before = self._standing.get(code)
            found = symptom(self.history, self.config, before is not None)
            if found is not None:
                assert found.code == code
                self._absent[code] = 0
                if before is None:
                    changes.append(Change(found, self.history.step))
                self._standing[code] = replace(found, step=(before or found).step)
            elif before is not None:
                self._absent[code] += 1
                if self._absent[code] >= GONE_AFTER:
                    changes.append(Change(self._standing.pop(code), self.history.step, gone=True))
        return changes


def diagnose(metrics: Sequence[Mapping[str, Any]], config: Config | None = None) -> list[Finding]:
    """What stands at the end of these rows of metrics.jsonl, gravest first."""
    return Watch(config, metrics).standing
