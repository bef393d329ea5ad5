"""groupwise's step: the package's own training loop, as `groupwise train` runs it."""

import pathlib
import tempfile
from collections.abc import Mapping

from groupwise.config import Config
from groupwise.load import Parts, make_engine
from groupwise.policy.adapters import add_adapter
from groupwise.policy.compile_ahead import compile_ahead
from groupwise.policy.load import make_policy
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.reference import Reference
from groupwise.policy.training_layers import training_layers
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.base import Task
from groupwise.tracking.base import Trackers
from groupwise.tracking.run import RunFolder
from groupwise.training.loop import run_loop
from groupwise.training.optim import Optimizer
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.types import Problem
from sidebyside import models
from sidebyside.record import forget_peak, held_bytes, record
from sidebyside.reward import letters
from sidebyside.settings import Measurement, Setting


def measure(setting: Setting, kind: str) -> Measurement:
    model, tokenizer = models.build(setting)
    config = _config(setting, compile_layers=kind.endswith("+compile"))
    adapter = add_adapter(model, config.adapter, model.dtype, 0) if config.adapter else None
    policy = make_policy(model, tokenizer, config.batch.layout, adapter)
    problems = [Problem(str(i), text) for i, text in enumerate(models.prompts(setting, tokenizer))]
    prompted, _ = fit_prompts(problems, tokenizer, config.rollout.max_prompt_tokens)
    task = Task("lengths", problems, None, validation=[], test=[])
    scorer = Scorer([Reward("letters", letters)], config.reward_timeout, config.on_reward_error)
    engine = make_engine(policy, config)
    layers = training_layers(policy.device, config)
    reference = Reference(policy, config.reference, layers) if setting.beta else None
    state = TrainState(policy, Optimizer(model, config.optimizer, config.steps), reference)
    log = StepLog(setting.device)
    forget_peak(setting.device)
    with (
        tempfile.TemporaryDirectory() as folder,
        RunFolder(pathlib.Path(folder) / "run", config) as run,
        Parts(config, policy, task, engine, scorer, scorer, {"train": prompted}) as parts,
        compile_ahead(policy, config),
    ):
        run_loop(parts, state, run, Trackers({"log": lambda: log}), StopRequest())
    return record(
        kind,
        setting,
        log.steps,
        [round(mean * setting.answers) for mean in log.tokens],
        int(max(log.longest)),
        engine=type(engine).__name__,
        layout=policy.layout,
    )


def _config(setting: Setting, *, compile_layers: bool) -> Config:
    """The defaults, but for what the setting says."""
    return Config.model_validate(
        {
            "steps": setting.warmup + setting.steps,
            "model": setting.model,
            "device": setting.device,
            "batch": {"prompts": setting.prompts, "group_size": setting.group},
            "rollout": {
                "max_prompt_tokens": 2 * setting.prompt_tokens,
                "max_completion_tokens": setting.completion_tokens,
            },
            "compile": "all" if compile_layers else "auto",
            "adapter": {"rank": setting.adapter} if setting.adapter else None,
            "algorithm": {"kl_weight": setting.beta},
            "optimizer": {"lr": 1e-6},
            "checkpoint": {"every": 0},
            "tracking": {"tensorboard": False},
        }
    )


class StepLog:
    """A tracker that keeps the loop's own seconds and lengths, and memory between steps."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.steps: list[dict[str, float]] = []
        self.tokens: list[float] = []
        self.longest: list[float] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        seconds = {
            "generation": metrics["seconds/generate"],
            "reference": metrics["seconds/logprobs"],
            "update": metrics["seconds/update"],
            "step": metrics["seconds"],
            "held_bytes": held_bytes(self.device),
        }
        self.steps.append(seconds)
        self.tokens.append(metrics["tokens"])
        self.longest.append(metrics["tokens_max"])

    def close(self) -> None:
        pass
