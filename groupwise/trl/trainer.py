"""GRPOTrainer: TRL's constructor and methods, on our engine, objective, checkpoints and folder."""

import functools
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from datasets import IterableDataset
from torch import Tensor
from transformers import TrainerCallback, TrainerState, enable_full_determinism, set_seed
from transformers.trainer_utils import TrainOutput, speed_metrics

from groupwise.compat.transformers import model_id
from groupwise.distributed.world import ALONE
from groupwise.errors import ConfigError, DataError, RewardError
from groupwise.load import Parts, load_parts, make_reference
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.reference import Reference
from groupwise.report.terminal import print_findings
from groupwise.tasks.base import Task
from groupwise.tracking.console import console
from groupwise.tracking.log_file import logging_to
from groupwise.tracking.run import RunFolder
from groupwise.training.api import check_plan, make_state, write_results
from groupwise.training.checkpoint import load_into, save_model
from groupwise.training.optim import Optimizer
from groupwise.training.sampler import InOrder
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.trl.callbacks import TrainerCallbacks
from groupwise.trl.config import GRPOConfig, as_dict
from groupwise.trl.data import checked_train_dataset, problems_of, train_rows
from groupwise.trl.environment import EnvironmentArguments
from groupwise.trl.folder import checkpoint_to_resume, set_earlier_run_aside
from groupwise.trl.loop import Training
from groupwise.trl.metrics import MetricMeans, answer_metrics, update_metrics
from groupwise.trl.model import (
    load_model,
    load_tokenizer,
    make_trained_policy,
    read_weights,
    with_template_arguments,
)
from groupwise.trl.rates import Given, optimizer_maker, rates
from groupwise.trl.reporting import Reporting
from groupwise.trl.rewards import as_rewards, load_rewards
from groupwise.trl.rollout import loss_of, sampled_groups
from groupwise.trl.settings import UNLIMITED, imported_args, length_of, run_config
from groupwise.trl.table import AnswerTable
from groupwise.trl.warnings import warn_of_odd_settings, warn_of_router_loss


class GRPOTrainer(Reporting):
    """GRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=brief, train_dataset=dataset).train()

    The run's folder is `args.output_dir`: `groupwise view`, `report`, `explain` and `compare` read
    it.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: Given = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        rollout_func: Callable[..., Any] | None = None,
        environment_factory: Any = None,
    ) -> None:
        name = model if isinstance(model, str) else model_id(model) or type(model).__name__
        self.args = args = args or GRPOConfig(f"{name.rstrip('/').split('/')[-1]}-GRPO")
        _check_processes(args)
        if rollout_func is not None:
            raise ConfigError(
                "rollout_func is not supported: an environment_factory or tools make an answer a "
                "conversation, and the engine samples it"
            )
        self.optimizers, self.eval_dataset = optimizers, eval_dataset
        self._imported = imported = imported_args(args)
        warn_of_odd_settings(args)
        (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
        self._environments = EnvironmentArguments.of(environment_factory, tools or (), args)
        self._load_data(train_dataset, imported.tree["batch"]["prompts"])
        self._load_policy(model, quantization_config, processing_class, peft_config)
        self.pool = self._environments.pool
        self._rewards = load_rewards(
            reward_funcs, args, reward_processing_classes, self.policy.device, self.pool
        )
        self.reward_funcs = self._rewards.functions
        self.reward_func_names = self._rewards.names
        self.reward_processing_classes = self._rewards.processing_classes
        if not self.reward_func_names:
            raise ConfigError(
                "No reward source provided: pass reward_funcs, or an environment_factory whose "
                "environment has a method get_reward"
            )
        self.callbacks = TrainerCallbacks(args, callbacks or (), self.model, self.processing_class)
        self._metrics = {"train": MetricMeans(), "eval": MetricMeans()}
        self.answers = AnswerTable(args)
        self._make_config(name)
        self.callbacks("on_init_end")

    # What it is made of

    def _load_data(self, train_dataset: Any, prompts: int) -> None:
        factories = self._environments.factories
        data = checked_train_dataset(train_dataset, factories, self.args.max_steps, prompts)
        streams = [data, *_each(self.eval_dataset).values()]
        if any(isinstance(stream, IterableDataset) for stream in streams):
            loading: Any = self.args.accelerator_config
            if loading.dispatch_batches:
                raise ConfigError("Iterable datasets require `dispatch_batches=False`")
            loading.dispatch_batches = False
        streamed = isinstance(data, IterableDataset)
        if streamed:
            self.args.dataloader_num_workers = 0
        self.train_dataset = data
        rows = None if streamed else len(data)
        self.length = length_of(self.args, self._imported, rows)

    def _load_policy(
        self, model: Any, quantization_config: Any, processing_class: Any, peft_config: Any
    ) -> None:
        loaded = load_model(model, self.args, quantization_config)
        self.processing_class = load_tokenizer(processing_class, loaded, self.args)
        tokenizer = with_template_arguments(self.processing_class, self._template_arguments)
        self.policy = make_trained_policy(loaded, tokenizer, self.args, peft_config)
        adapter = self.policy.adapter
        self.model = self.policy.model if adapter is None else adapter.peft
        warn_of_router_loss(self.args, self.policy.model)
        self.aux_loss_enabled = False
        self.entropy_coef = self.args.entropy_coef

    def _make_config(self, name: str) -> None:
        weights = dict(zip(self._unique_names, self._rewards.weights, strict=True))
        self.config = run_config(
            self.args,
            self._imported,
            self.length,
            model=name,
            rewards=weights,
            environment=self._environments.settings,
        )
        check_plan(self.config)
        self.reference = None
        if self.config.algorithm.needs_reference:
            if self.args.sync_ref_model and self.policy.adapter is not None:
                raise ConfigError("sync_ref_model=True does not work with an adapter, as in TRL")
            self.reference = make_reference(self.config, self.policy, fresh=True)

    @property
    def _unique_names(self) -> list[str]:
        return [reward.name for reward in as_rewards(self._rewards, self._offered, {})]

    def _offered(self, answers: int) -> dict[str, Any]:
        """What reward functions may ask for beside columns."""
        offered = {
            "trainer_state": self.state,
            "log_extra": self.answers.add_extra,
            "log_metric": self._log_metric,
        }
        if self.pool is None:
            return offered
        if answers != len(self.pool.environments):
            raise RewardError("the reward failed in its call with all environments of the rollout")
        return offered | {"environments": list(self.pool.environments)}

    @property
    def _template_arguments(self) -> dict[str, Any]:
        return as_dict(self.args.chat_template_kwargs)

    @property
    def ref_model(self) -> Any:
        """None without KL, and with an adapter, which is switched off instead."""
        if not isinstance(self.reference, Reference) or self.policy.adapter is not None:
            return None
        return self.reference.policy.model

    @property
    def reward_weights(self) -> Tensor:
        return torch.tensor(self._rewards.weights, dtype=torch.float32)

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return list(self._environments.functions)

    @property
    def environments(self) -> list[Any] | None:
        """Of the last rollout's answers; None without an environment_factory."""
        return None if self.pool is None else self.pool.environments

    @functools.cached_property
    def accelerator(self) -> Any:
        """For scripts that print through it."""
        from accelerate import Accelerator

        return Accelerator(cpu=self.args.use_cpu)

    def _parts(self) -> Parts:
        """Everything but the policy: made for a run or an evaluation, and closed after it."""
        args, config = self.args, self.config
        wanted = config.batch.prompts * config.steps
        rows, in_order = train_rows(
            self.train_dataset, seed=args.seed, shuffled=bool(args.shuffle_dataset), wanted=wanted
        )
        problems = problems_of(
            rows,
            prompts_needed=self._environments.factories is None,
            columns=not args.remove_unused_columns,
        )
        self._environments.check(problems)
        task = Task(
            "train_dataset",
            problems,
            None,
            validation=(),
            test=(),
            formatted=lambda completion: True,  # not by name, which would start a process for it
        )
        parts = load_parts(
            config,
            rewards=as_rewards(self._rewards, self._offered, self._template_arguments),
            task=task,
            environment=self._environments.factory,
            policy=self.policy,
            training=True,
        )
        if in_order:
            parts.problems["train"] = InOrder(parts.problems["train"])
        return parts

    # Training

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, **_: Any
    ) -> TrainOutput:
        """Without `resume_from_checkpoint` a run begins anew, and an earlier one is set aside."""
        folder = pathlib.Path(self.args.output_dir or ".")
        if not resume_from_checkpoint:
            set_earlier_run_aside(folder)
        owned = RunFolder(folder, self.config, shared=True)
        with (
            owned as run,
            logging_to(run.path),
            StopRequest() as stop,
            self._parts() as parts,
        ):
            state = self._start(parts, run, resume_from_checkpoint or None)
            run.rewind(state.step)
            training = Training(self, parts, state, run, stop)
            began = time.time()
            self.entropy_coef = state.entropy_weight
            training.run_to_the_end()
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
                read_weights(self.policy, run.path / "best")
            done = state.step >= self.config.steps
            status = "finished" if done else "stopped"
            _, findings = write_results(
                run, state, training.evaluated, status, lambda folder: save_model(state, folder)
            )
            print_findings(findings)
            console.print(f"look at it:  groupwise view {run.path}", highlight=False, markup=False)
        return self._output(training, began)

    def _start(
        self, parts: Parts, run: RunFolder, resume: str | os.PathLike[str] | Literal[True] | None
    ) -> TrainState:
        given, scheduler = self.optimizers
        make = optimizer_maker(self.args, given, self.policy.model)
        state = make_state(
            self.config, self.policy, None, ALONE, with_reference=False, own_optimizer=make
        )
        state.reference = self.reference
        assert isinstance(state.optimizer, Optimizer)
        self._set_rates = state.optimizer.set_rates = rates(self.args, self.length, scheduler)
        handler: Any = self.callbacks.handler
        handler.optimizer, handler.lr_scheduler = state.optimizer.inner, scheduler
        self._begin_state()
        if resume is not None:
            folder = checkpoint_to_resume(run, resume, self.length.updates)
            read_weights(self.policy, folder / "model")
            load_into(state, folder)
            self._restore_history(run, state.step * self.length.updates)
        run.check_start(run.checkpoints if resume else None)
        return state

    def _begin_state(self) -> None:
        state, length = self.state, self.length
        state.global_step, state.epoch, state.log_history = 0, 0.0, []
        state.max_steps, state.num_input_tokens_seen = length.max_steps, 0
        state.num_train_epochs = max(round(length.epoch(length.max_steps)), 1)
        state.train_batch_size = self.args.per_device_train_batch_size
        state.compute_steps(self.args, state.max_steps)

    def _restore_history(self, run: RunFolder, step: int) -> None:
        """What was logged up to the checkpoint."""
        path = run.path / "trainer_state.json"
        before = TrainerState.load_from_json(str(path)) if path.is_file() else TrainerState()
        state = self.state
        state.global_step, state.epoch = step, self.length.epoch(step)
        state.log_history = [line for line in before.log_history or [] if line["step"] <= step]
        state.num_input_tokens_seen = before.num_input_tokens_seen
        state.best_metric, state.best_global_step = before.best_metric, before.best_global_step
        state.best_model_checkpoint = before.best_model_checkpoint

    def _output(self, training: Training, began: float) -> TrainOutput:
        steps, answers = training.steps_taken, self.config.batch.prompts * self.args.num_generations
        metrics: dict[str, Any] = speed_metrics(
            "train", began, num_samples=steps * answers // self.length.updates, num_steps=steps
        )
        metrics["total_flos"] = 0.0
        metrics["train_loss"] = training.total_loss / max(steps, 1)
        self.log(dict(metrics))
        if self.args.push_to_hub and self.args.hub_strategy == "end":
            self.push_to_hub("End of training")
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def rate_after(self, step: int) -> float:
        """The learning rate of optimizer step number `step`, where none was taken."""
        inner = self.callbacks.handler.optimizer
        assert inner is not None
        return self._set_rates(inner, step / self.length.updates)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float | None]:
        """num_generations_eval answers to each prompt, with training's sampling and rewards."""
        with self._parts() as parts:
            return self.evaluate_with(parts, eval_dataset, metric_key_prefix)

    def evaluate_with(
        self, parts: Parts, eval_dataset: Any = None, prefix: str = "eval"
    ) -> dict[str, float | None]:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise DataError("there is no eval_dataset to evaluate on")
        metrics: dict[str, float | None] = {}
        for name, each in _each(dataset).items():
            metrics |= self._evaluate_one(parts, each, f"{prefix}_{name}" if name else prefix)
        return metrics

    def _evaluate_one(self, parts: Parts, dataset: Any, prefix: str) -> dict[str, float | None]:
        began = time.time()
        problems = problems_of(
            dataset,
            prefix=f"{prefix}-",
            prompts_needed=self._environments.factories is None,
            columns=not self.args.remove_unused_columns,
        )
        self._environments.check(problems)
        prompted, _ = fit_prompts(problems, self.policy.tokenizer, UNLIMITED)
        count = self.args.num_generations_eval or self.args.num_generations
        self._mode = "eval"
        groups = sampled_groups(parts, prompted, count, prefix, self.pool)
        self._mode = "train"
        self.answers.forget_extra()
        numbers = loss_of(parts, groups, self.reference)
        self.add_metrics("eval", {**answer_metrics(groups), **update_metrics(numbers, None)})
        means = {"loss": numbers["loss"], **self._metrics["eval"].means()}
        metrics: dict[str, Any] = {f"{prefix}_{name}": value for name, value in means.items()}
        answers = len(problems) * count
        metrics |= speed_metrics(prefix, began, num_samples=answers, num_steps=len(problems))
        self._log_line(metrics)
        self.callbacks("on_evaluate", metrics=metrics)
        return metrics


def _each(dataset: Any) -> dict[str, Any]:
    """Datasets by name; one alone has the name ""."""
    if isinstance(dataset, Mapping):
        return dict(dataset)
    return {} if dataset is None else {"": dataset}


def _check_processes(args: GRPOConfig) -> None:
    if args.world_size > 1:
        raise ConfigError(
            f"the script was started as {args.world_size} processes, and groupwise.trl trains in "
            "one: start it with plain `python`. For several, train a recipe: `groupwise import` "
            "makes one of a GRPOConfig, and `groupwise train RECIPE --nproc N` starts it"
        )
