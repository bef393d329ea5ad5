"""Every setting of a run, as one frozen tree. Importable without torch, so errors come at once.

The docstring under a field is its documentation; docs/configuration.md is made of them.
"""

from groupwise.config.base import Settings
from groupwise.config.ray import RaySettings
from groupwise.config.run import (
    AdapterSettings,
    BatchSettings,
    CheckpointSettings,
    Config,
    DistributedSettings,
    EngineSettings,
    EvalSettings,
    OptimizerSettings,
    ReferenceSettings,
    RewardSettings,
    RolloutSettings,
    TrackingSettings,
)
from groupwise.config.tasks import (
    AnyTask,
    AquaRatTask,
    ArithmeticTask,
    CountdownTask,
    DatasetTask,
    Gsm8kTask,
    GymTask,
    HubTask,
    JsonlTask,
    MathQaTask,
    MathTask,
    PythonTask,
    TaskSettings,
)
from groupwise.config.workers import WorkerSettings

__all__ = [
    "AdapterSettings",
    "AnyTask",
    "AquaRatTask",
    "ArithmeticTask",
    "BatchSettings",
    "CheckpointSettings",
    "Config",
    "CountdownTask",
    "DatasetTask",
    "DistributedSettings",
    "EngineSettings",
    "EvalSettings",
    "Gsm8kTask",
    "GymTask",
    "HubTask",
    "JsonlTask",
    "MathQaTask",
    "MathTask",
    "OptimizerSettings",
    "PythonTask",
    "RaySettings",
    "ReferenceSettings",
    "RewardSettings",
    "RolloutSettings",
    "Settings",
    "TaskSettings",
    "TrackingSettings",
    "WorkerSettings",
]
