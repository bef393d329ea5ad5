"""Training with transformers' callbacks around every optimizer step.

The step is our own (`grpo_step`), and so is the folder that it is logged to. One of our steps is a
rollout with all its optimizer steps; callbacks hear of each of these once the rollout is learned
from, and what they ask for (an evaluation, a checkpoint, to stop) is done then.
"""

from typing import Any

from groupwise.diagnose import Watch
from groupwise.errors import Interrupted
from groupwise.load import Parts
from groupwise.tracking.base import Trackers
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.training.checkpoint import save_checkpoint
from groupwise.training.clock import Clock, phase
from groupwise.training.loop import log_rollouts, log_step, metrics_line
from groupwise.training.recorder import Recorder, Update
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.training.step import Step, grpo_step
from groupwise.trl.folder import link_checkpoints
from groupwise.trl.metrics import answer_metrics, token_count, update_metrics
from groupwise.trl.rollout import entropy_weight, sample_rollout


class Training:
    """One call of `train()` of a GRPOTrainer."""

    def __init__(
        self,
        trainer: Any,
        parts: Parts,
        state: TrainState,
        run: RunFolder,
        stop: StopRequest,
    ) -> None:
        self.trainer, self.parts, self.state, self.run, self.stop = trainer, parts, state, run, stop
        self.callbacks, self.length = trainer.callbacks, trainer.length
        self.watch = Watch(parts.config, read_metrics(run.path))
        self.losses: list[float] = []
        """Since the last log."""
        self.total_loss, self.steps_taken = 0.0, 0
        self.evaluated: dict[str, float] = {}

    def run_to_the_end(self) -> None:
        config, epoch = self.parts.config, self.length.rollouts_in_epoch
        self.callbacks("on_train_begin")
        if self.trainer.args.eval_on_start:
            self._evaluate()
        while self.state.step < config.steps and not self.callbacks.control.should_training_stop:
            if epoch is None or self.state.step % epoch == 0:
                self.callbacks("on_epoch_begin")
            self._step()
            if epoch is not None and self.state.step % epoch == 0:
                self._end_epoch()
            self._leave_if_asked()
        self.callbacks("on_train_end")

    def _step(self) -> None:
        self.callbacks("on_step_begin")
        recorder = Recorder(tokens=False)
        with Clock() as clock:
            rollout = sample_rollout(self.parts, self.state, self.trainer.pool)
            step = grpo_step(self.parts, self.state, rollout, recorder)
            self.state.seconds += clock.total
            line = metrics_line(step, clock, self.parts, self.state)
        trainer = self.trainer
        trainer.add_metrics("train", answer_metrics(step.batch.groups))
        trainer.add_metrics("train", {"step_time": clock.total})
        trainer.keep_answers(step.batch.groups)
        trainer.state.num_input_tokens_seen += token_count(step.batch.groups)
        wanted = [self._update(step, *numbered) for numbered in enumerate(recorder.updates)]
        if any(evaluate for evaluate, _ in wanted):
            line |= {f"eval/{name}": value for name, value in self._evaluate().items()}
        log_rollouts(step, self.state, self.run)
        log_step(line, self.run, Trackers({}), self.watch)
        if any(save for _, save in wanted):
            self.save()

    def _update(self, step: Step, number: int, update: Update) -> tuple[bool, bool]:
        """Tell callbacks of one optimizer step; whether they want an evaluation, a checkpoint."""
        callbacks, state = self.callbacks, self.trainer.state
        if number:
            callbacks("on_step_begin")
        loss, norm, lr = update.loss or 0.0, update.grad_norm, update.lr
        callbacks("on_pre_optimizer_step")
        callbacks("on_optimizer_step")
        state.global_step += 1
        state.epoch = self.length.epoch(state.global_step)
        self.losses.append(loss)
        self.total_loss, self.steps_taken = self.total_loss + loss, self.steps_taken + 1
        weight = entropy_weight(self.parts.config, self.state)
        self.trainer.entropy_coef = weight or 0.0
        self.trainer.add_metrics("train", update_metrics({**step.metrics, "loss": loss}, weight))
        control = callbacks("on_step_end")
        if control.should_log:
            rate = self.trainer.rate_after(state.global_step - 1) if lr is None else lr
            logs = {"loss": sum(self.losses) / len(self.losses), "grad_norm": norm}
            self.trainer.log({**logs, "learning_rate": rate})
            self.losses = []
        return control.should_evaluate, control.should_save

    def _end_epoch(self) -> None:
        control = self.callbacks("on_epoch_end")
        if control.should_log and self.losses:
            self.trainer.log({"loss": sum(self.losses) / len(self.losses)})
            self.losses = []
        if control.should_evaluate:
            self._evaluate()
        if control.should_save:
            self.save()

    def _evaluate(self) -> dict[str, float]:
        """Rewards on the evaluation's problems, by our names."""
        with phase("eval"):
            metrics = self.trainer.evaluate_with(self.parts)
        self.trainer.keep_best(metrics, self.state, self.run)
        numbers = {n.removeprefix("eval_"): v for n, v in metrics.items() if v is not None}
        self.evaluated = {
            name.removesuffix("/mean"): value
            for name, value in numbers.items()
            if name == "reward" or (name.startswith("rewards/") and name.endswith("/mean"))
        }
        return self.evaluated

    def save(self) -> None:
        save_checkpoint(self.state, self.run.checkpoints, self.parts.config.checkpoint.keep)
        link_checkpoints(self.run, self.length.updates)
        self.trainer.state.save_to_json(str(self.run.path / "trainer_state.json"))
        self.callbacks("on_save")
        args = self.trainer.args
        if args.push_to_hub and args.hub_strategy == "every_save":
            self.trainer.push_to_hub(f"Step {self.trainer.state.global_step}")

    def _leave_if_asked(self) -> None:
        if self.stop.requested is not None:
            self.save()
            raise Interrupted(
                f"stopped by {self.stop.requested} after step {self.trainer.state.global_step}; "
                "train(resume_from_checkpoint=True) goes on from there"
            )
