"""Every setting of a run, as one frozen tree. Importable without torch, so errors come at once.

The docstring under a field is its documentation; docs/configuration.md is made of them.
"""

from groupwise.config.engine import Ahead, InFlight, InTurn, Processes, Servers, VllmEngineSettings
from groupwise.config.ray import RaySettings
from groupwise.config.run import (
    AdapterSettings,
    Config,
    EvalSettings,
    OptimizerSettings,
    ReferenceSettings,
    RewardSettings,
    RolloutSettings,
)

__all__ = [
    "AdapterSettings",
    "Ahead",
    "Config",
    "EvalSettings",
    "InFlight",
    "InTurn",
    "OptimizerSettings",
    "Processes",
    "RaySettings",
    "ReferenceSettings",
    "RewardSettings",
    "RolloutSettings",
    "Servers",
    "VllmEngineSettings",
]
