"""What a trainer tells and keeps: logs, the best model, folders, the hub, callbacks."""

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import log_metrics, metrics_format, save_metrics, save_state

from groupwise.errors import ConfigError
from groupwise.interop.folder import push_model
from groupwise.tracking.run import RunFolder
from groupwise.tracking.whole import replace_folder
from groupwise.training.checkpoint import save_model
from groupwise.training.state import TrainState
from groupwise.trl.callbacks import TrainerCallbacks
from groupwise.trl.config import GRPOConfig
from groupwise.trl.environment import Pool
from groupwise.trl.formulas import Formulas
from groupwise.trl.metrics import MetricMeans
from groupwise.trl.table import AnswerTable
from groupwise.types import Group

CARD = ("dataset_name", "model_name", "tags", "language", "license", "finetuned_from", "tasks")
"""What TRL's push_to_hub writes into a model card. Ours is not written from them."""


class Reporting(Formulas):
    """Of GRPOTrainer, which makes these:"""

    args: GRPOConfig
    model: Any
    processing_class: Any
    callbacks: TrainerCallbacks
    accelerator: Any
    answers: AnswerTable
    pool: Pool | None
    _metrics: dict[str, MetricMeans]
    _mode = "train"

    @property
    def state(self) -> TrainerState:
        return self.callbacks.state

    @property
    def control(self) -> Any:
        return self.callbacks.control

    # What TRL's trainer has under these names, for scripts that derive from it or look inside

    @property
    def _logs(self) -> dict[str, Any]:
        """The last rollout's answers."""
        return self.answers.columns()

    @property
    def _env_tools(self) -> dict[str | None, list[Any]]:
        return {} if self.pool is None else self.pool.tools

    @property
    def _environment_pool(self) -> dict[str | None, list[Any]]:
        return {} if self.pool is None else self.pool.free

    def add_metrics(self, mode: str, metrics: Mapping[str, float | None]) -> None:
        self._metrics[mode].add(metrics)

    def _log_metric(self, name: str, value: float) -> None:
        """What reward functions get as `log_metric`."""
        self._metrics[self._mode].add({name: value})

    def keep_answers(self, groups: Sequence[Group]) -> None:
        self.answers.keep(groups)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """The numbers, and the means of what was measured since the last log."""
        logs = logs | self._metrics["train"].means()
        if self.state.num_input_tokens_seen:
            logs["num_tokens"] = self.state.num_input_tokens_seen
        self._log_line(logs)
        self.answers.show(self.state.global_step)

    def _log_line(self, logs: dict[str, Any]) -> None:
        logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.callbacks("on_log", logs=logs)

    log_metrics, metrics_format, save_metrics = log_metrics, metrics_format, save_metrics
    save_state = save_state

    # Saving

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A Hugging Face folder: the model (or its adapter alone) and the tokenizer."""
        folder = pathlib.Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)
        torch.save(self.args.to_dict(), folder / "training_args.bin")

    def push_to_hub(
        self, commit_message: str = "End of training", blocking: bool = True,
        token: str | None = None, revision: str | None = None, **more: Any,
    ) -> str:  # fmt: skip
        """The model to `args.hub_model_id`, or to a repository named like the output folder."""
        unknown = [name for name in more if name not in CARD]
        if unknown:
            raise ConfigError(f"push_to_hub has no argument {unknown[0]!r}")
        args = self.args
        repository = args.hub_model_id or pathlib.Path(args.output_dir or "model").resolve().name
        with tempfile.TemporaryDirectory() as folder:
            self.save_model(folder)
            return push_model(
                pathlib.Path(folder), repository,
                private=args.hub_private_repo, token=token or args.hub_token,
                message=commit_message, revision=revision or args.hub_revision,
                ignore_patterns=["training_args.bin"],
            )  # fmt: skip

    def end(self) -> None:
        """What transformers' scripts call last. One process has no group to leave."""
        self.accelerator.end_training()

    # Callbacks

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callbacks.handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        return self.callbacks.handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        self.callbacks.handler.remove_callback(callback)

    def is_world_process_zero(self) -> bool:
        return True

    is_local_process_zero = is_world_process_zero

    def keep_best(
        self, metrics: Mapping[str, float | None], state: TrainState, run: RunFolder
    ) -> None:
        """The best model so far stays in best/, where load_best_model_at_end asks for it."""
        args, name = self.args, self.args.metric_for_best_model
        if not args.load_best_model_at_end or name is None:
            return
        key = name if name.startswith("eval_") else f"eval_{name}"
        value, best = metrics.get(key), self.state.best_metric
        if value is None:
            raise ConfigError(
                f"metric_for_best_model={name}: an evaluation has no {key}; it has: "
                f"{', '.join(metrics)}"
            )
        if best is None or (value > best if args.greater_is_better else value < best):
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step
            self.state.best_model_checkpoint = str(run.path / "best")
            replace_folder(run.path / "best", lambda folder: save_model(state, folder))
