"""When a finding appears, and when it is gone.

Symptoms look at means over several steps, have a wider limit for staying than for appearing, and
must be absent for some steps before they count as gone. So nothing flickers: a number that hovers
around a limit gives one message, not fifty.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.config import Config
from groupwise.diagnose import answers, episodes, learning, rewards, speed
from groupwise.diagnose.finding import Finding, by_severity
from groupwise.diagnose.history import WINDOW, History

Symptom = Callable[[History, Config | None, bool], Finding | None]
"""(history, config, whether it stands already) -> the finding at the history's last step."""

# Causes before their consequences: among equally severe findings this is the order of telling.
SYMPTOMS: dict[str, Symptom] = {
    "environment_failed": episodes.environment_failed,
    "eos_never": answers.eos_never,
    "truncated": answers.truncated,
    "malformed_calls": episodes.malformed_calls,
    "tools_never_called": episodes.tools_never_called,
    "repeated_calls": episodes.repeated_calls,
    "calls_never_end": episodes.calls_never_end,
    "turn_limit": episodes.turn_limit,
    "format_never_found": rewards.format_never_found,
    "no_spread": rewards.no_spread,
    "reward_saturated": rewards.saturated,
    "entropy_collapse": learning.entropy_collapse,
    "kl_blowup": learning.kl_blowup,
    "length_explosion": answers.length_explosion,
    "length_collapse": answers.length_collapse,
    "one_reward_dominates": rewards.one_reward_dominates,
    "accuracy_lost": learning.accuracy_lost,
    "reward_hacking": rewards.reward_hacking,
    "sampler_gap": learning.sampler_gap,
    "learning_rate_high": learning.learning_rate_high,
    "learning_rate_low": learning.learning_rate_low,
    "environment_slow": episodes.environment_slow,
    "slow_phase": speed.slow_phase,
}

GONE_AFTER = WINDOW
"""Steps without a symptom after which its finding is gone."""


@dataclass(frozen=True)
class FindingChange:
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
        """Findings that hold now, most severe first."""
        return by_severity(self._standing[code] for code in SYMPTOMS if code in self._standing)

    def add(self, row: Mapping[str, Any]) -> list[FindingChange]:
        self.history.add(row)
        changes: list[FindingChange] = []
        for code, symptom in SYMPTOMS.items():
            before = self._standing.get(code)
            finding = symptom(self.history, self.config, before is not None)
            if finding is not None:
                self._absent[code] = 0
                step = self.history.step if before is None else before.step
                self._standing[code] = replace(finding, code=code, step=step)
                if before is None:
                    changes.append(FindingChange(self._standing[code], step))
            elif before is not None:
                self._absent[code] += 1
                if self._absent[code] >= GONE_AFTER:
                    changes.append(
                        FindingChange(self._standing.pop(code), self.history.step, gone=True)
                    )
        return changes


def diagnose(metrics: Sequence[Mapping[str, Any]], config: Config | None = None) -> list[Finding]:
    """What stands at the end of these rows of metrics.jsonl, most severe first."""
    return Watch(config, metrics).standing
