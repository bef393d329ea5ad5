"""Train from a config: load, resume where there is something to resume, run the loop, finish."""

import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from groupwise.config import Config
from groupwise.diagnose import diagnose
from groupwise.distributed.join import joined
from groupwise.distributed.world import ALONE, World
from groupwise.errors import ConfigError
from groupwise.extensions import load_object
from groupwise.load import MakeEngine, Parts, describe, load_parts, make_reference
from groupwise.objective.advantages import AdvantageEstimator
from groupwise.objective.surrogates import Surrogate
from groupwise.policy.load import Policy
from groupwise.rewards.base import Reward
from groupwise.secrets import without_secrets
from groupwise.tasks.base import Task
from groupwise.tracking.base import Tracker, Trackers
from groupwise.tracking.card import model_card
from groupwise.tracking.console import LiveConsole, can_redraw, console
from groupwise.tracking.html_report import write_report
from groupwise.tracking.report import (
    before_after_table,
    print_curve,
    print_findings,
    save_before_after,
    save_curve,
)
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.tracking.services import Service, TensorBoard
from groupwise.tracking.whole import replace_folder, writing
from groupwise.training.checkpoint import (
    load_into,
    newest_checkpoint,
    save_checkpoint,
    save_model,
)
from groupwise.training.followed_run import open_run
from groupwise.training.loop import run_loop
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import MakeOptimizer
from groupwise.training.parallel import check_ranks, make_stepper
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState

log = logging.getLogger("groupwise")


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: pathlib.Path
    summary: Mapping[str, Any]

    @property
    def model(self) -> pathlib.Path:
        """The trained model: a Hugging Face folder."""
        return self.folder / "model"


def train(
    config: Config,
    out: str | pathlib.Path | None = None,
    *,
    rewards: Sequence[Reward | Callable[..., Any]] | None = None,
    task: Task | None = None,
    algorithm: Surrogate | AdvantageEstimator | None = None,
    engine: MakeEngine | None = None,
    optimizer: MakeOptimizer | None = None,
    trackers: Sequence[Tracker] = (),
    quiet: bool = False,
) -> Result:
    """Train into the folder `out`; called again with the same config, go on where it stopped.

    Without `out` the folder is `default_folder(config)`: each config has one of its own.
    In place of names in the config, what is yours is passed as it is: `rewards` and `task`;
    `algorithm`, a surrogate or an advantage estimator; `engine(policy, config)`;
    `optimizer(parameter_groups, settings)`, which gives a torch.optim.Optimizer; and `trackers`,
    objects with `log(step, metrics)` and `close()`.
    """
    objective = config.algorithm if algorithm is None else config.algorithm.using(algorithm)
    config = config.model_copy(update={"algorithm": objective.loaded()})
    check_plan(config)
    chosen = None if rewards is None else [_as_reward(reward) for reward in rewards]
    folder = default_folder(config) if out is None else pathlib.Path(out)
    with joined(config.device, config.distributed.timeout) as world:
        check_ranks(config, world)
        with open_run(folder, config, world) as run, StopRequest() as stop:
            stop.at_once = world.size == 1
            finished = world.broadcast(run.summary)
            if finished is not None and finished["steps"] >= config.steps:
                log.info("%s is finished: nothing to do", run.path)
                return Result(run.path, finished)
            newest = world.first_does(lambda: _start_from(run))
            with world.one_ahead():
                weights = newest and f"{newest}/model"
                parts = load_parts(
                    config,
                    weights=weights,
                    rewards=chosen,
                    task=task,
                    engine=engine,
                    training=True,
                )
            parts.world = world.aside()
            parts.share_engine(world)
            with parts:
                resumed = pathlib.Path(newest) if newest else None
                state = start_state(parts, resumed, world, optimizer)
                quiet = quiet or not world.first
                return run_to_the_end(parts, state, run, stop, quiet, trackers)


def run_to_the_end(
    parts: Parts,
    state: TrainState,
    run: RunFolder,
    stop: StopRequest,
    quiet: bool,
    own_trackers: Sequence[Tracker] = (),
) -> Result:
    """From where `state` stands: the loop, between two held-out evaluations."""
    config = parts.config
    run.rewind(state.step)
    if not quiet:
        console.print(describe(config, parts.policy), highlight=False, markup=False)
    if state.step or state.before:
        log.info("resuming %s after step %d", run.path, state.step)
    if not state.before:
        with _status("held-out evaluation before training", quiet):
            held_out = parts.evaluate("test")
        run.log_evaluation("before", held_out.problems)
        state.before = held_out.metrics
    first = state.optimizer.world.first
    makers = _tracker_makers(config, run, state.step, quiet) if first else {}
    if first:
        makers |= {f"tracker {n}": (lambda t=t: t) for n, t in enumerate(own_trackers, start=1)}
    trackers = Trackers(makers)
    stop.at_once = False
    try:
        run_loop(parts, state, run, trackers, stop)
    finally:
        trackers.close()
    return finish(parts, state, run, quiet)


def _start_from(run: RunFolder) -> str | None:
    """The checkpoint that the run goes on from; None to begin."""
    newest = newest_checkpoint(run.checkpoints)
    run.check_start(newest)
    return None if newest is None else str(newest)


def default_folder(config: Config) -> pathlib.Path:
    """runs/tiny-arithmetic-1f0c59d2: the last part is a digest of the settings."""
    settings = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()
    model = pathlib.PurePath(config.model).name[:40]
    return pathlib.Path("runs") / f"{model}-{config.task.kind}-{digest}"


def start_state(
    parts: Parts,
    resumed: pathlib.Path | None,
    world: World = ALONE,
    optimizer: MakeOptimizer | None = None,
) -> TrainState:
    """A fresh state, or the one in checkpoint `resumed` (whose weights `parts.policy` has)."""
    return make_state(parts.config, parts.policy, resumed, world, own_optimizer=optimizer)


def make_state(
    config: Config,
    policy: Policy,
    resumed: pathlib.Path | None,
    world: World = ALONE,
    *,
    with_reference: bool = True,
    own_optimizer: MakeOptimizer | None = None,
) -> TrainState:
    """`with_reference=False`: for updates whose reference log-probs are known already."""
    reference = None
    if config.algorithm.needs_reference and with_reference:
        reference = make_reference(config, policy, fresh=resumed is None)
    optimizer, shards = make_stepper(config, policy, world, own_optimizer)
    weight = config.algorithm.entropy_weight
    budget = TokenBudget(config.batch.tokens_per_microbatch, world, together=shards is not None)
    settings = without_secrets(config.model_dump(mode="json"))
    state = TrainState(
        policy,
        optimizer,
        reference,
        shards,
        entropy_weight=weight,
        settings=settings,
        budget=budget,
    )
    if resumed is not None:
        load_into(state, resumed)
    return state


def finish(parts: Parts, state: TrainState, run: RunFolder, quiet: bool) -> Result:
    """Last checkpoint, held-out evaluation, the model folder, the summary and the curve."""
    config = parts.config
    save_checkpoint(state, run.checkpoints, config.checkpoint.keep)
    with _status("held-out evaluation after training", quiet):
        held_out = parts.evaluate("test")
    after = held_out.metrics
    if not state.optimizer.world.first:
        return Result(run.path, {"before": state.before, "after": after, "steps": state.step})
    run.log_evaluation("after", held_out.problems)
    steps = read_metrics(run.path)
    findings = diagnose(steps, config)
    summary = {
        "status": "finished",
        "steps": state.step,
        "seconds": state.seconds,
        "before": state.before,
        "after": after,
        "findings": [asdict(finding) for finding in findings],
    }

    def write(folder: pathlib.Path) -> None:
        save_model(parts.policy, folder)
        (folder / "README.md").write_text(model_card(config, summary), encoding="utf-8")

    replace_folder(run.path / "model", write)
    with writing(run.path):
        if steps:
            save_curve(steps, run.path / "reward.png")
        write_report(run.path, summary)
        save_before_after(state.before, after, run.path / "eval" / "before_after.md")
    run.write_summary(summary)
    if not quiet:
        if steps:
            print_curve([line["reward"] for line in steps])
        title = f"{parts.task.name}: {after['problems']:.0f} held-out problems"
        console.print(before_after_table(state.before, after, title))
        print_findings(findings)
        console.print(
            f"trained {state.step} steps in {state.seconds:.0f} s; model in {run.path / 'model'}, "
            f"report in {run.path / 'report.html'}",
            highlight=False,
            markup=False,
        )
        console.print(f"look at it:  groupwise view {run.path}", highlight=False, markup=False)
    return Result(run.path, summary)


def _status(text: str, quiet: bool) -> AbstractContextManager[object]:
    return console.status(text) if not quiet and can_redraw(console) else nullcontext()


def check_plan(config: Config) -> None:
    """Refuse batch plans that cannot be carried out, before anything is loaded."""
    if config.batch.minibatches > config.batch.prompts:
        raise ConfigError(
            f"batch.minibatches is {config.batch.minibatches}, but there are only "
            f"batch.prompts={config.batch.prompts} groups to split into them: lower minibatches"
        )
    if config.rollout.overlong_buffer > config.rollout.max_completion_tokens:
        raise ConfigError(
            f"rollout.overlong_buffer ({config.rollout.overlong_buffer}) is longer than "
            f"rollout.max_completion_tokens ({config.rollout.max_completion_tokens}): lower it"
        )


def _as_reward(reward: Reward | Callable[..., Any]) -> Reward:
    if isinstance(reward, Reward):
        return reward
    return Reward(getattr(reward, "__name__", "reward"), reward)


def _tracker_makers(
    config: Config, run: RunFolder, step: int, quiet: bool
) -> dict[str, Callable[[], Tracker]]:
    tracking = config.tracking
    makers: dict[str, Callable[[], Tracker]] = {}
    if not quiet:
        makers["console"] = lambda: LiveConsole(config.steps, step)
    if tracking.tensorboard:
        makers["tensorboard"] = lambda: TensorBoard(run.path / "events", step)
    settings = without_secrets(config.model_dump(mode="json"))
    for name in tracking.own:
        makers[name] = lambda name=name: load_object(name, what="tracking.own")(run.path, config)
    for service in ("trackio", "wandb"):
        if getattr(tracking, service):
            makers[service] = lambda service=service: Service(
                service, tracking.project, run.path.name, settings
            )
    return makers
