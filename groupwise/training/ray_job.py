"""`groupwise train --launch ray`: the same loop as a Ray Train job on a cluster that is there.

A Ray worker is a rank. Ray Train places the workers, starts their process group and sets RANK and
the like, and each calls `train()`, which finds them as it does under torchrun. The run folder is on
storage that all machines share: when a worker is lost Ray ends the others and starts all of them
anew, and `train()` goes on from the last checkpoint in that folder, exactly. Ray's own checkpoints
are not used.

An error that the user has to fix must not be retried: the worker reports it to `FirstError`, an
actor, and workers that are started after that end at once.
"""

import importlib.util
import os
import pathlib
import socket
from collections.abc import Mapping
from typing import Any

from groupwise.config import Config, RaySettings
from groupwise.errors import ConfigError, GroupwiseError, MissingExtraError, RankLost
from groupwise.tracking.run import read_summary

PROBE = 10.0
"""Seconds to wait for a cluster to answer."""


class FirstError:
    """An actor that stores the first error that a user has to fix, as long as the job runs."""

    def __init__(self) -> None:
        self.message: str | None = None

    def put(self, message: str) -> None:
        self.message = self.message or message

    def read(self) -> str | None:
        return self.message


def train_on_ray(
    config: Config, folder: str | pathlib.Path, *, workers: int | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Train on `workers` (or the recipe's number of them) until the end. The run's summary."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray")
    ray = _connected(config.ray)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    out = pathlib.Path(folder).absolute()
    count, needs = workers or config.ray.workers, resources(config, ray.cluster_resources())
    check_room(count, needs, ray.cluster_resources())
    first_error = ray.remote(num_cpus=0)(FirstError).remote()
    on_gpu = needs.get("GPU", 0) > 0
    trainer = TorchTrainer(
        rank,
        train_loop_config={
            "config": config.model_dump(mode="json"),
            "folder": str(out),
            "home": os.getcwd(),
            "quiet": quiet,
            "first_error": first_error,
        },
        scaling_config=ScalingConfig(
            num_workers=count, use_gpu=on_gpu, resources_per_worker=dict(needs)
        ),
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            timeout_s=int(config.distributed.timeout),
        ),
        run_config=RunConfig(
            name=out.name,
            storage_path=str(out.parent / ".ray"),
            failure_config=FailureConfig(max_failures=config.ray.max_failures),
        ),
    )
    failure: Exception | None = None
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        failure = error
    said = ray.get(first_error.read.remote())
    if said is not None:
        raise GroupwiseError(said)
    if failure is not None:
        raise RankLost(_lost(failure, config.ray.max_failures)) from failure
    summary = read_summary(out)
    if summary is None:
        raise ConfigError(
            f"the Ray job ended and {out} has no summary here: it must be on storage that this "
            "machine shares with the workers"
        )
    return summary


def rank(settings: Mapping[str, Any]) -> None:
    """What each Ray worker does."""
    import ray

    from groupwise.training.api import train

    first_error = settings["first_error"]
    if ray.get(first_error.read.remote()) is not None:
        return
    try:
        _enter(settings["home"])
        config = Config.model_validate(settings["config"])
        train(config, settings["folder"], quiet=settings["quiet"])
    except GroupwiseError as error:
        ray.get(first_error.put.remote(str(error)))
        raise


def _enter(home: str) -> None:
    """Paths in a recipe are relative to the folder where the command was given."""
    try:
        os.chdir(home)
    except OSError as error:
        raise ConfigError(
            f"{home}, where the command was given, is not on {socket.gethostname()} "
            f"({error.strerror}): use storage that all machines share"
        ) from error


def resources(config: Config, there: Mapping[str, float]) -> dict[str, float]:
    """What Ray reserves for a worker."""
    gpus = config.ray.gpus
    if gpus is None:
        gpus = 1.0 if config.device != "cpu" and there.get("GPU", 0) else 0.0
    return {"CPU": config.ray.cpus, **({"GPU": gpus} if gpus else {})}


def check_room(count: int, needs: Mapping[str, float], there: Mapping[str, float]) -> None:
    """Ray would wait for ever for what a cluster does not have."""
    for name, each in needs.items():
        if count * each > there.get(name, 0.0):
            raise ConfigError(
                f"{count} workers with {each:g} {name} each need {count * each:g}, and the Ray "
                f"cluster has {there.get(name, 0.0):g}: lower ray.workers (or --nproc) or "
                f"ray.{name.lower()}s, or add machines"
            )


def _connected(settings: RaySettings) -> Any:
    address = settings.address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    _reachable(address)
    import ray
    import ray.train

    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=True)
        except ConnectionError as error:
            raise _nowhere(address) from error
    return ray


def _reachable(address: str) -> None:
    """Ray itself would try an address that nobody answers at for many minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PROBE).close()
    except (OSError, OverflowError) as error:
        raise _nowhere(address) from error


def _nowhere(address: str) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {address!r}, or it does not take this command's token: start "
        "one with `ray start --head`, name one by ray.address=HOST:PORT, set RAY_AUTH_TOKEN to its "
        "token, or use ray.address=local for one on this machine"
    )


def _lost(failure: Exception, limit: int) -> str:
    last = str(failure).strip().splitlines()[-1:]
    return (
        f"the Ray job failed more than ray.max_failures={limit} times: {''.join(last)}. "
        "The same command goes on from the last checkpoint"
    )
