"""Train from a config: load, resume where there is something to resume, run the loop, finish."""

import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from groupwise.config import Config
from groupwise.describe import describe
from groupwise.diagnose import Finding, diagnose_outcome
from groupwise.distributed.join import joined
from groupwise.distributed.world import ALONE, World
from groupwise.environments.base import EnvironmentFactory
from groupwise.errors import ConfigError
from groupwise.evaluate import evaluate
from groupwise.extensions import load_object
from groupwise.load import MakeEngine, Parts, load_parts, make_reference
from groupwise.objective.advantages import AdvantageEstimator
from groupwise.objective.surrogates import Surrogate
from groupwise.policy.compile_ahead import compile_ahead
from groupwise.policy.in_memory import ModelInMemory
from groupwise.policy.load import Policy
from groupwise.report.model_card import model_card
from groupwise.report.run_page import write_report
from groupwise.report.terminal import (
    before_after_table,
    print_curve,
    print_findings,
    save_before_after,
    save_curve,
)
from groupwise.rewards.base import Reward
from groupwise.secrets import without_secrets
from groupwise.tasks.base import Task
from groupwise.tracking.activity import listening
from groupwise.tracking.base import Tracker, Trackers
from groupwise.tracking.console import LiveConsole, console
from groupwise.tracking.log_file import logging_to
from groupwise.tracking.run import RunFolder, read_metrics, read_summary
from groupwise.tracking.services import Service, TensorBoard
from groupwise.tracking.whole import copy_model, link_equal_files, replace_folder, writing
from groupwise.training.arguments import TrainArguments, arguments_of, check_kinds
from groupwise.training.callbacks import Callback, Callbacks, Event
from groupwise.training.checkpoint import load_into, newest_checkpoint, save_checkpoint
from groupwise.training.exchange import Exchange
from groupwise.training.loop import NO_CALLBACKS, run_loop
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import MakeOptimizer
from groupwise.training.parallel import check_ranks, keeps_whole_copy, make_optimizer
from groupwise.training.read_only_run import open_run
from groupwise.training.result import Result
from groupwise.training.shards import free_weights
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState

log = logging.getLogger("groupwise")


def train(
    config: Config | str | None = None,
    out: str | pathlib.Path | None = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    task: Task | str | Mapping[str, Any] | None = None,
    rewards: Reward | Callable[..., Any] | Sequence[Any] | None = None,
    algorithm: Surrogate | AdvantageEstimator | str | Mapping[str, Any] | None = None,
    engine: MakeEngine | str | Mapping[str, Any] | None = None,
    environment: EnvironmentFactory | str | Mapping[str, Any] | None = None,
    optimizer: MakeOptimizer | Mapping[str, Any] | None = None,
    trackers: Sequence[Tracker] = (),
    callbacks: Sequence[Callback | Callable[[Event], object]] = (),
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train into the folder `out`; called again with the same settings, go on where it stopped.

        groupwise.train("demo", steps=20)
        groupwise.train("demo", data=rows, rewards=[correct], batch={"prompts": 8})
        groupwise.train(config, model=loaded, tokenizer=tokenizer, callbacks=[stop_when_good])

    `config` is a Config, or the name or file of a recipe (None: the demo's); `settings` go over it,
    by name: steps=5, algorithm="dapo", batch={"prompts": 8}. Without `out` the folder is one of
    runs/, by a digest of all that was given.

    In place of names in the config, what is yours is passed as it is: `model`, a model of
    transformers or PEFT in memory, which is trained in place, and its `tokenizer`; `data`, a
    datasets.Dataset or a list of dicts with a column `prompt` (other columns: `data_task`), or a
    `task`; `rewards`, functions or Rewards; `algorithm`, a surrogate or an advantage estimator;
    `engine(policy, config)`; `environment`, made by `tools_environment`, `trl_environment` or
    `EnvironmentFactory` of groupwise.environments (.tools, .trl, .base);
    `optimizer(parameter_groups, settings)`, which gives a torch.optim.Optimizer; `trackers`,
    objects with `log(step, metrics)` and `close()`; `callbacks`, objects with `on_step(event)`, or
    functions of an event: `event.stop(reason)` ends the run.
    """
    names = {"model": model, "task": task, "rewards": rewards, "algorithm": algorithm,
             "engine": engine, "environment": environment, "optimizer": optimizer}  # fmt: skip
    check_kinds(out, trackers)
    given = arguments_of(config, settings, names, tokenizer=tokenizer, data=data)
    folder = default_folder(given) if out is None else pathlib.Path(out)
    return train_given(given, folder, trackers, Callbacks(callbacks), quiet)


def train_given(
    given: TrainArguments,
    folder: pathlib.Path,
    trackers: Sequence[Tracker] = (),
    callbacks: Callbacks = NO_CALLBACKS,
    quiet: bool = False,
) -> Result:
    """What `train` does, with its arguments in order."""
    config = given.config
    check_plan(config)
    with joined(config.device, config.distributed.timeout) as world:
        check_ranks(config, world)
        with (
            open_run(folder, config, world) as run,
            StopRequest() as stop,
            run.kept_if_begun(),
            logging_to(run.path) if world.first else nullcontext(),
        ):
            stop.at_once = world.size == 1
            finished = world.broadcast(read_summary(run.path))
            if finished is not None and finished["steps"] >= config.steps:
                if world.first:
                    tell = log.info if quiet else _say
                    tell(f"{run.path} is finished: nothing to do")
                return Result(run.path, finished)
            newest = world.first_does(lambda: _start_from(run))
            with world.one_ahead():
                parts = load_parts(
                    config,
                    weights=newest and f"{newest}/model",
                    given=given.model,
                    rewards=given.rewards,
                    task=given.task,
                    engine=given.engine,
                    environment=given.environment,
                    training=True,
                    world=world,
                )
            with parts:
                resumed = pathlib.Path(newest) if newest else None
                state = start_state(parts, resumed, world, given.optimizer)
                quiet = quiet or not world.first
                return run_to_the_end(parts, state, run, stop, quiet, trackers, callbacks)


def run_to_the_end(
    parts: Parts,
    state: TrainState,
    run: RunFolder,
    stop: StopRequest,
    quiet: bool,
    own_trackers: Sequence[Tracker] = (),
    callbacks: Callbacks = NO_CALLBACKS,
) -> Result:
    """From where `state` stands: the loop, between two evaluations on the test problems."""
    config = parts.config
    run.rewind(state.step, logged=state.step - len(state.held))
    tell = log.info if quiet else _say
    if not quiet:
        _say(describe(config, parts.policy))
    if state.step or state.before:
        tell(f"resuming {run.path} after step {state.step}")
    with compile_ahead(parts.policy, config, on=state.shards is None):
        state.publish(parts.engine)
        if not state.before:
            with _status("evaluating on the test problems, before training", quiet):
                held_out = evaluate(parts, "test")
            run.log_evaluation("before", held_out.problems)
            state.before = held_out.metrics
        first = state.optimizer.world.first
        makers = _tracker_makers(config, run, state.step, quiet, own_trackers) if first else {}
        trackers = Trackers(makers)
        stop.at_once = False
        try:
            stopped = run_loop(parts, state, run, trackers, stop, callbacks)
        finally:
            trackers.close()
    return finish(parts, state, run, quiet, stopped)


def _start_from(run: RunFolder) -> str | None:
    """The checkpoint that the run goes on from; None to begin."""
    newest = newest_checkpoint(run.checkpoints)
    run.check_start(newest)
    return None if newest is None else str(newest)


def default_folder(given: TrainArguments) -> pathlib.Path:
    """runs/tiny-arithmetic-1f0c59d2: the last part is a digest of the settings and the data."""
    config, task = given.config, given.config.task.kind
    settings = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.blake2b(settings.encode(), digest_size=4)
    if given.task is not None:
        task = given.task.name
        for problem in given.task.train:
            digest.update(f"{problem.id} {problem.prompt}".encode(errors="replace"))
    for reward in given.rewards or ():
        digest.update(f"{reward.name} {reward.weight}".encode())
    name = f"{pathlib.PurePath(config.model).name[:40]}-{task}-{digest.hexdigest()}"
    return pathlib.Path("runs") / re.sub(r"[^\w.-]+", "-", name)


def start_state(
    parts: Parts,
    resumed: pathlib.Path | None,
    world: World = ALONE,
    optimizer: MakeOptimizer | None = None,
) -> TrainState:
    """A fresh state, or the one in checkpoint `resumed` (whose weights `parts.policy` has)."""
    state = make_state(
        parts.config, parts.policy, resumed, world, own_optimizer=optimizer, given=parts.given
    )
    if world.size > 1:
        each_rank_samples = parts.waiting.size == 1
        state.exchange = Exchange(world, parts.problems["train"], each_rank_samples)
    return state


def make_state(
    config: Config,
    policy: Policy,
    resumed: pathlib.Path | None,
    world: World = ALONE,
    *,
    with_reference: bool = True,
    own_optimizer: MakeOptimizer | None = None,
    given: ModelInMemory | None = None,
) -> TrainState:
    """`with_reference=False`: for updates whose reference log-probs are known already."""
    reference = None
    if config.algorithm.needs_reference and with_reference:
        reference = make_reference(config, policy, fresh=resumed is None, given=given, world=world)
    optimizer, shards = make_optimizer(config, policy, world, own_optimizer)
    if not keeps_whole_copy(config, policy, world):
        free_weights(policy.model)
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


def finish(
    parts: Parts, state: TrainState, run: RunFolder, quiet: bool, stopped: str | None = None
) -> Result:
    """Last checkpoint, evaluation on test problems, the model folder, the summary and the curve.

    `stopped` says why a callback ended the run before its last step.
    """
    config = parts.config
    saved = save_checkpoint(state, run.checkpoints, config.checkpoint.keep)
    with _status("evaluating on the test problems, after training", quiet):
        held_out = evaluate(parts, "test")
    after = held_out.metrics
    if not state.optimizer.world.first:
        return Result(run.path, {"before": state.before, "after": after, "steps": state.step})
    run.log_evaluation("after", held_out.problems)
    status = "finished" if stopped is None else f"stopped: {stopped}"
    summary, findings = write_results(
        run, state, after, status, lambda folder: copy_model(saved / "model", folder)
    )
    if not quiet:
        steps = read_metrics(run.path)
        if steps and not console.is_jupyter:  # there the result shows a better one
            print_curve([line["reward"] for line in steps])
        title = f"{parts.task.name}: {after['problems']:.0f} test problems"
        console.print(before_after_table(state.before, after, title))
        print_findings(findings)
        if stopped is not None:
            _say(f"stopped: {stopped}")
        _say(
            f"trained {state.step} steps in {state.seconds:.0f} s; model in {run.path / 'model'}, "
            f"report in {run.path / 'report.html'}"
        )
        _say(f"look at it:  groupwise view {run.path}")
    return Result(run.path, summary, _trained_in_place(parts, state))


def write_results(
    run: RunFolder,
    state: TrainState,
    after: dict[str, float],
    status: str,
    write_model: Callable[[pathlib.Path], None],
) -> tuple[dict[str, Any], list[Finding]]:
    """The model, the curve, the report and the summary; and what was wrong at the end.

    Only a run that was evaluated before too has a model card and a table of before and after.
    """
    steps = read_metrics(run.path)
    findings = diagnose_outcome(steps, state.before, after, run.config)
    summary: dict[str, Any] = {
        "status": status,
        "steps": state.step,
        "seconds": state.seconds,
        "before": state.before,
        "after": after,
        "findings": [asdict(finding) for finding in findings],
    }

    def write(folder: pathlib.Path) -> None:
        write_model(folder)
        if state.before:
            (folder / "README.md").write_text(model_card(run.config, summary), encoding="utf-8")

    replace_folder(run.path / "model", write)
    with writing(run.path):
        if steps:
            save_curve(steps, run.path / "reward.png", state.before)
        write_report(run.path, summary)
        if state.before:
            save_before_after(state.before, after, run.path / "eval" / "before_after.md")
    run.write_summary(summary)
    link_equal_files(run.weight_folders())
    return summary, findings


def _trained_in_place(parts: Parts, state: TrainState) -> ModelInMemory | None:
    """The given model, where it is the one that was trained."""
    given = parts.given
    return given if given is not None and given.plain is state.policy.model else None


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False)


@contextmanager
def _status(text: str, quiet: bool) -> Iterator[None]:
    """What happens before and after the loop, and how far it is."""
    if quiet:
        yield
    elif not console.is_terminal:
        _say(f"{text} ...")
        yield
    else:
        with (
            console.status(text) as status,
            listening(lambda doing: status.update(f"{text}: {doing}")),
        ):
            yield


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


def _tracker_makers(
    config: Config, run: RunFolder, step: int, quiet: bool, own: Sequence[Tracker]
) -> dict[str, Callable[[], Tracker]]:
    tracking = config.tracking
    makers: dict[str, Callable[[], Tracker]] = {
        f"tracker {number}": lambda tracker=tracker: tracker
        for number, tracker in enumerate(own, start=1)
    }
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
