"""Diagnosis in words: what a run's numbers say is wrong, with the evidence and what to try.

One small pure function per symptom, over the rows of metrics.jsonl; `watch.py` lists them all and
decides when a finding appears and when it is gone. No torch, so that a viewer can use it.
"""

from groupwise.diagnose.finding import Finding
from groupwise.diagnose.outcome import diagnose_outcome
from groupwise.diagnose.watch import SYMPTOMS, FindingChange, Watch, diagnose

__all__ = ["SYMPTOMS", "Finding", "FindingChange", "Watch", "diagnose", "diagnose_outcome"]
