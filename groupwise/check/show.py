"""`groupwise check` as it is printed: the plan on paper, what the recipe says, the trial."""

from rich.markup import escape
from rich.table import Table

from groupwise.check.plan import Gpu, find_gpu, job_of, make_plan, shape_of
from groupwise.check.plan.gpus import gpu_like, this_cpu
from groupwise.check.plan.shapes import PREFIX
from groupwise.check.plan.show import plan_text
from groupwise.check.profile import Profile, make_profile
from groupwise.check.trial import make_trial, small_parts
from groupwise.check.verdicts import Verdict, verdicts
from groupwise.config import Config
from groupwise.describe import describe, describe_place
from groupwise.environments.groups import Episodes
from groupwise.errors import ConfigError, ModelError
from groupwise.load import Parts, load_parts
from groupwise.recipe import config_text
from groupwise.tracking.console import console, printable
from groupwise.training.api import check_plan


def print_check(
    name: str,
    config: Config,
    *,
    dry: bool = False,
    gpu: str | None = None,
    gpus: int = 1,
    profile: bool = False,
) -> None:
    """What it costs on paper; what it says; unless `dry`, what a trial of a few problems shows.

    For a GPU that is not here, for several, or for a mere shape there is the paper alone.
    """
    if profile and dry:
        raise ConfigError("--profile makes a step, and --dry tries nothing: leave one of them out")
    check_plan(config)
    if not print_costs(config, gpu, gpus):
        if profile:
            raise ConfigError("--profile makes a step of a model here: leave out --gpu and shapes")
        return
    console.print()
    profiled = None
    with load_parts(config) as parts:
        print_recipe(name, parts)
        if dry:
            console.print(config_text(config), highlight=False, markup=False)
            return
        with console.status("a trial step"):
            small, state = small_parts(parts)
            trial = make_trial(small, state, config)
        if profile:
            with console.status("the same step again, under the profiler"):
                profiled = make_profile(small, state)
    count = sum(len(group.completions) for group in trial.groups)
    console.print(f"\na trial: {len(trial.groups)} problems, {count} answers, one update")
    lines = verdicts(trial)
    for verdict in lines:
        print_verdict(verdict)
    if profiled is not None:
        console.print(f"\n{profile_text(profiled)}", highlight=False, markup=False)
    warnings = sum(verdict.fix is not None for verdict in lines)
    console.print(
        f"\n{warnings} warning{'s' * (warnings != 1)}" if warnings else "\nready to train"
    )


def profile_text(profile: Profile) -> str:
    """Two tables of at most 80 columns."""
    peak, phases = profile.peak, {"sampling": profile.sampling, "update": profile.update}
    lines = [
        f"a profile: {profile.prompts} problems, {profile.answers} answers, "
        f"{profile.tokens} sampled tokens",
        f"at best this machine does {peak.flops / 1e9:,.0f} GFLOP/s, {peak.bytes / 1e9:,.0f} GB/s",
        f"{'':<30}{'seconds':>10}{'computing':>11}{'floor':>9}{'x floor':>9}{'MFU':>8}",
    ]
    for name, phase in phases.items():
        line = f"{name:<30}{phase.seconds:>10.3g}{phase.busy:>11.0%}"
        if phase.floor and phase.mfu is not None:
            times = phase.seconds / phase.floor
            line += f"{phase.floor:>9.2g}{times:>9.3g}{phase.mfu:>8.1%}"
        lines.append(line)
    lines.append(f"{'of what is computed':<30}{'sampling':>10}{'update':>11}")
    for kind in profile.update.kinds:
        shares = profile.sampling.kinds[kind], profile.update.kinds[kind]
        lines.append(f"{kind:<30}{shares[0]:>10.0%}{shares[1]:>11.0%}")
    return "\n".join(lines)


def print_costs(config: Config, gpu: str | None, gpus: int) -> bool:
    """The plan. Says whether it is for this machine, and for a model that can be tried on it."""
    shape_only = config.model.startswith(PREFIX)
    planned = find_gpu(gpu) if gpu else gpu_here(config)
    try:
        job = job_of(config, on_gpu=not planned.is_cpu, world=gpus)
        plan = make_plan(shape_of(config.model), job, planned)
    except ModelError as error:
        if gpu or shape_only:
            raise
        console.print(f"plan       none: {error}", highlight=False, markup=False)
        return True
    console.print(plan_text(plan), highlight=False, markup=False, soft_wrap=True)
    return not shape_only and gpus == 1 and (gpu is None or _is_here(planned, config))


def gpu_here(config: Config) -> Gpu:
    """What `device` means on this machine."""
    from groupwise.policy.load import pick_device

    if pick_device(config.device).type != "cuda":
        return this_cpu()
    import torch

    properties = torch.cuda.get_device_properties(0)
    return gpu_like(properties.name, properties.total_memory)


def _is_here(gpu: Gpu, config: Config) -> bool:
    here = gpu_here(config)
    try:
        return gpu == (here if here.is_cpu else find_gpu(here.name))
    except ConfigError:  # a GPU without an entry in the table
        return False


def print_recipe(name: str, parts: Parts) -> None:
    """What a recipe says, in words: model, task, rewards, batch, objective."""
    config, objective, batch = parts.config, parts.config.algorithm, parts.config.batch
    counts = ", ".join(f"{len(problems)} {split}" for split, problems in parts.problems.items())
    steps = batch.minibatches * batch.epochs
    lines = {
        "recipe": name,
        "policy": describe(config, parts.policy),
        "task": f"{parts.task.name}: {counts} problems",
        "rewards": ", ".join(f"{r.name} x {r.weight:g}" for r in parts.scorer.rewards),
        "batch": f"{batch.prompts} prompts x {batch.group_size} answers = "
        f"{batch.prompts * batch.group_size} answers a step, {steps} optimizer "
        f"step{'s' * (steps > 1)} (batch.minibatches={batch.minibatches}, "
        f"batch.epochs={batch.epochs}), "
        f"at most {batch.tokens_per_microbatch} tokens at once",
        "objective": f"{objective.preset}: {objective.ratio} ratio, {objective.surrogate.kind}, "
        f"{objective.aggregate}, advantages: {objective.advantage.formula()}",
        "reference": config.reference.kind if objective.needs_reference else "none (no KL)",
        "sampling": f"temperature {config.rollout.temperature:g}, "
        f"up to {config.rollout.max_completion_tokens} tokens",
    }
    if config.place.kind != "here" or config.timing.kind != "in_turn":
        lines["engine"] = describe_place(config)
    for key, text in [*lines.items(), *episode_lines(parts.episodes)]:
        _print_beside(f"[bold]{key:<10}[/]", escape(text))


def _print_beside(label: str, text: str) -> None:
    """What does not fit one line goes on below the text, not below the label."""
    row = Table.grid(padding=(0, 1))
    row.add_row(label, text)
    console.print(row, highlight=False)


def episode_lines(episodes: Episodes | None) -> list[tuple[str, str]]:
    """What an episode is, and what the chat template was proven to do on probe conversations."""
    if episodes is None:
        return []
    tools = ", ".join(tool.name for tool in episodes.factory.tools)
    what = f"{episodes.factory.name}: up to {episodes.limits.max_turns} turns, continued by "
    lines = [("episodes", f"{what}{episodes.continued_by}{f'; tools: {tools}' if tools else ''}")]
    for kind, broken in episodes.prove().items():
        kept = "what stands before stays, token by token"
        split = f"{broken}; episodes go on in a new segment there"
        lines.append(("template", f"{kind}: {kept if broken is None else split}"))
    return lines


def print_verdict(verdict: Verdict) -> None:
    mark = "[green]ok     [/]" if verdict.fix is None else "[yellow]warning[/]"
    name = printable(verdict.name)
    tried = "" if verdict.fix is None else f"\ntry: {printable(verdict.fix)}"
    _print_beside(mark, f"[bold]{name}[/]: {printable(verdict.text)}{tried}")
