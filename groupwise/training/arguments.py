"""The arguments of `groupwise.train`: names become settings, objects are checked and kept."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.config import Config
from groupwise.environments.base import EnvironmentFactory
from groupwise.errors import ConfigError, DataError, type_name
from groupwise.load import MakeEngine
from groupwise.objective.advantages import AdvantageEstimator
from groupwise.objective.surrogates import Surrogate
from groupwise.policy.in_memory import ModelInMemory, model_in_memory
from groupwise.recipe import load_recipe
from groupwise.rewards.base import Reward
from groupwise.tasks.base import Task
from groupwise.tasks.rows import data_task
from groupwise.training.optim import MakeOptimizer


@dataclass(frozen=True)
class TrainArguments:
    """The run's settings, and objects to use in place of what the settings name. None: as named."""

    config: Config
    model: ModelInMemory | None = None
    task: Task | None = None
    rewards: list[Reward] | None = None
    engine: MakeEngine | None = None
    environment: EnvironmentFactory | None = None
    optimizer: MakeOptimizer | None = None


def arguments_of(
    config: Config | str | None,
    settings: Mapping[str, Any],
    parts: Mapping[str, Any],
    *,
    tokenizer: Any = None,
    data: Any = None,
) -> TrainArguments:
    """`parts`: an object, a setting or None for each of model, task, rewards, algorithm, ..."""
    if data is not None and parts.get("task") is not None:
        raise ConfigError("give data= or task=, not both")
    named = {name: part for name, part in parts.items() if _is_setting(name, part)}
    objects = {name: part for name, part in parts.items() if name not in named}
    named = {name: list(p) if isinstance(p, tuple) else p for name, p in named.items()}
    made = _config(config, {**named, **settings})
    algorithm = objects.get("algorithm")
    _check_kind("algorithm", algorithm, (Surrogate, AdvantageEstimator), "a surrogate or estimator")
    objective = made.algorithm if algorithm is None else made.algorithm.using(algorithm)
    made = made.model_copy(update={"algorithm": objective.loaded()})
    model = None
    if objects.get("model") is not None:
        model = model_in_memory(objects["model"], tokenizer)
        made = _for_model(made, model)
    elif tokenizer is not None:
        raise ConfigError("tokenizer= goes with a model in memory: give model= too")
    for name in ("engine", "optimizer"):
        if objects.get(name) is not None and not callable(objects[name]):
            raise ConfigError(f"{name}= takes a function, not {type_name(objects[name])}")
    what = "an EnvironmentFactory, such as tools_environment(...)"
    _check_kind("environment", objects.get("environment"), (EnvironmentFactory,), what)
    return TrainArguments(
        made,
        model,
        _task(objects.get("task"), data),
        _rewards(objects.get("rewards")),
        objects.get("engine"),
        objects.get("environment"),
        objects.get("optimizer"),
    )


def _is_setting(name: str, part: Any) -> bool:
    """Whether it is a value that a recipe could hold: a name, a block, of rewards a list."""
    if isinstance(part, list | tuple) and name == "rewards":
        return bool(part) and all(isinstance(item, str | Mapping) for item in part)
    return isinstance(part, str | Mapping)


def _config(config: Any, settings: Mapping[str, Any]) -> Config:
    if config is None or isinstance(config, str):
        return load_recipe(config, settings)
    if not isinstance(config, Config):
        raise ConfigError(
            "the first argument is a Config or the name of a recipe, not "
            f"{type_name(config)}: groupwise.train(groupwise.load_recipe('demo'), ...); data "
            "goes under data=, a model under model="
        )
    return config.replace(**settings) if settings else config


def _for_model(config: Config, model: ModelInMemory) -> Config:
    """The settings say which model it is, and describe its adapter."""
    if config.place.kind != "here" or config.engine.kind == "vllm":
        raise ConfigError(
            "other processes and vLLM load a model by its name, and this one is in memory: save it "
            "(save_pretrained of the model and of its tokenizer) and give model=folder"
        )
    if config.quantization is not None:
        raise ConfigError("a model in memory is quantized as it is loaded: leave out quantization")
    changes: dict[str, Any] = {"model": model.name}
    if model.is_peft:
        changes["adapter"] = model.adapter_settings
    return config.model_copy(update=changes)


def _task(task: Any, data: Any) -> Task | None:
    if data is not None:
        return data if isinstance(data, Task) else data_task(data)  # either word will do
    if task is not None and not isinstance(task, Task):
        raise DataError(
            f"task= takes a groupwise.Task or the settings of one, not {type_name(task)}; "
            "rows go under data=, a list of dicts or a datasets.Dataset"
        )
    return task


def _rewards(rewards: Any) -> list[Reward] | None:
    if rewards is None:
        return None
    listed: Sequence[Any] = rewards if isinstance(rewards, list | tuple) else [rewards]
    return [_reward(reward) for reward in listed]


def _reward(reward: Reward | Callable[..., Any]) -> Reward:
    if isinstance(reward, Reward):
        return reward
    if not callable(reward):
        raise ConfigError(
            f"rewards= takes functions, groupwise.Reward(name, function, weight) or names of ours, "
            f"and either all names or none; not {reward!r}"
        )
    return Reward(getattr(reward, "__name__", "reward"), reward)


def check_kinds(out: Any, trackers: Any) -> None:
    """Of what is neither a setting nor stands in for one."""
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ConfigError(f"out= takes the path of a folder, not {type_name(out)}")
    what = "a list of objects with log(step, metrics) and close()"
    if not isinstance(trackers, list | tuple):
        raise ConfigError(f"trackers= takes {what}, not {type_name(trackers)}")
    for tracker in trackers:
        if isinstance(tracker, type) or not callable(getattr(tracker, "log", None)):
            raise ConfigError(f"trackers= takes {what}; {tracker!r} is not one")


def _check_kind(name: str, part: Any, kinds: tuple[type, ...], what: str) -> None:
    if part is not None and not isinstance(part, kinds):
        raise ConfigError(f"{name}= takes {what}, or a setting; not {type_name(part)}")
