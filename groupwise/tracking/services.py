"""TensorBoard, trackio and Weights & Biases, each as a Tracker."""

import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

from groupwise.errors import MissingExtraError


class TensorBoard:
    def __init__(self, folder: pathlib.Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run writes again from its checkpoint on: what was logged after it is purged.
        self.writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Service:
    """trackio and wandb share one interface: init, log, finish."""

    def __init__(self, module: str, project: str, name: str, config: dict[str, Any]) -> None:
        try:
            self.service: Any = importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError(module, module) from error
        self.service.init(project=project, name=name, config=config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.service.log(dict(metrics), step=step)

    def close(self) -> None:
        self.service.finish()
