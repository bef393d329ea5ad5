"""What a trial shows: each line ok, or a warning with its fix. Pure functions of a trial."""

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.check.plan.show import duration as time_text
from groupwise.check.trial import Trial
from groupwise.config import Config
from groupwise.diagnose.history import percent
from groupwise.types import Completion


@dataclass(frozen=True)
class Verdict:
    """`fix` is what to change; without one, all is well."""

    name: str
    text: str
    fix: str | None = None


def verdicts(trial: Trial) -> list[Verdict]:
    return [
        prompts(trial),
        ends(trial),
        answers(trial),
        *rewards(trial),
        spread(trial),
        numerics(trial),
        memory(trial),
        duration(trial),
    ]


def prompts(trial: Trial) -> Verdict:
    lengths = [len(group.prompt_tokens) for group in trial.groups]
    limit = trial.config.rollout.max_prompt_tokens
    how = {True: "by the chat template", False: "joined turns, no chat template", None: "plain"}
    text = f"{how[trial.templated]}, {min(lengths)}-{max(lengths)} tokens (limit {limit})"
    fix = "the model was not taught to chat: use its instruct version, or a plain prompt"
    return Verdict("prompts", text, fix if trial.templated is False else None)


def ends(trial: Trial) -> Verdict:
    completions = _completions(trial)
    cut = _share([c.truncated for c in completions])
    limit = trial.config.rollout.max_completion_tokens
    text = f"{percent(1 - cut)} end by themselves, {percent(cut)} are cut off at {limit} tokens"
    fix = None
    if trial.turn_end is not None:
        fix = (
            f"the chat template ends a turn with {trial.turn_end!r}, which is not among the "
            f"model's eos tokens: rollout.stop=['{trial.turn_end}'], or fix generation_config.json"
        )
    elif cut == 1:
        fix = (
            "no answer ends: look at some (groupwise sample); rollout.stop=['...'] where they go "
            f"on after the answer, rollout.max_completion_tokens={2 * limit} where they do not "
            "get there"
        )
    elif cut > 0.2:
        fix = f"rollout.max_completion_tokens={2 * limit}"
    else:
        text += f"; the longest has {max(len(c.tokens) for c in completions)}"
    return Verdict("ends", text, fix)


def answers(trial: Trial) -> Verdict:
    read, formed = _share(trial.extracted), _share(trial.formatted)
    text = f"a final answer is found in {percent(read)}, the form asked for in {percent(formed)}"
    if trial.right is not None:
        text += f"; {percent(_share(trial.right))} are right"
    fix = (
        "most answers cannot be read: look at some (groupwise sample), show the form by an "
        "example in the prompt, or open answers with a prefill"
    )
    return Verdict("answers", text, fix if read < 0.5 else None)


def rewards(trial: Trial) -> list[Verdict]:
    """A line for each reward; one that scores all answers alike teaches nothing yet."""
    weights = {reward.name: reward.weight for reward in trial.config.rewards}
    lines = []
    for name in trial.groups[0].scores:
        scores = [s for group in trial.groups for s in group.scores[name] if s is not None]
        if not scores:
            lines.append(Verdict(f"reward {name}", "scores no answer", "does it find its columns?"))
            continue
        low, high, mean = min(scores), max(scores), sum(scores) / len(scores)
        text = f"{low:.3g} to {high:.3g}, mean {mean:.3g}, weight {weights.get(name, 1.0):g}"
        fix = None
        if low == high and weights.get(name, 1.0) and low <= 0:
            fix = f"every answer gets {low:g}: easier problems, or a reward with part marks"
        lines.append(Verdict(f"reward {name}", text, fix))
    return lines


def spread(trial: Trial) -> Verdict:
    useful = _share([group.has_spread for group in trial.groups])
    config = trial.config
    expected = useful * config.batch.prompts
    text = (
        f"answers differ in reward in {percent(useful)} of groups: about {expected:.0f} of "
        f"{config.batch.prompts} a step teach something"
    )
    fix = (
        f"easier problems or part marks; batch.group_size={2 * config.batch.group_size}; "
        "rollout.max_draws=3"
    )
    if trial.right is not None and _share(trial.right) > 0.9:
        fix = "nearly all is right already: use harder problems"
    return Verdict("spread", text, fix if useful < 0.3 else None)


def numerics(trial: Trial) -> Verdict:
    gap = trial.sampler_gap
    if gap is None:
        return Verdict("numerics", "sampler and trainer not compared: no group had a gradient")
    text = f"sampler and trainer differ by {gap:.2g} in log-prob"
    fix = "algorithm.mismatch=token corrects for it; rollout.top_p=1 and top_k=0 avoid it"
    return Verdict("numerics", text, fix if gap > 0.05 else None)


def memory(trial: Trial) -> Verdict:
    """On a GPU, activations of the trial are scaled to a full micro-batch."""
    growth = 1.0
    if trial.on_gpu:
        tokens = sum(
            len(group.prompt_tokens) + sum(len(c.tokens) for c in group.completions)
            for group in trial.groups
        )
        full = trial.config.batch.prompts / len(trial.groups) * tokens
        growth = max(1.0, min(trial.config.batch.tokens_per_microbatch, full) / tokens)
    needed = trial.resident_gb + growth * max(trial.peak_gb - trial.resident_gb, 0.0)
    text = (
        f"about {needed:.1f} of {trial.available_gb:.0f} GB, of which {trial.resident_gb:.2g} GB "
        "weights and optimizer"
    )
    half = trial.config.batch.tokens_per_microbatch // 2
    fix = f"batch.tokens_per_microbatch={half}, gradient_checkpointing=true, or an adapter"
    return Verdict("memory", text, fix if needed > 0.9 * trial.available_gb else None)


def duration(trial: Trial) -> Verdict:
    config = trial.config
    step = step_seconds(trial)
    evals = eval_seconds(trial)
    count = 2 + (config.steps // config.eval.every if config.eval.every else 0)
    total = config.steps * step + count * evals
    phases = ", ".join(
        f"{name} {time_text(seconds * _scale(trial))}"
        for name, seconds in trial.seconds.items()
        if seconds * _scale(trial) > 0.01 * step
    )
    text = (
        f"at most about {time_text(step)} a step ({phases}); {count} evaluations of "
        f"{time_text(evals)}; {config.steps} steps take {time_text(total)}"
    )
    fix = "evaluation takes most of it: a larger eval.every, a smaller eval.problems, eval.k=1"
    return Verdict("time", text, fix if count * evals > 0.5 * total and total > 60 else None)


def step_seconds(trial: Trial) -> float:
    """From the trial's step by the number of prompts; batching makes the real one cheaper."""
    return sum(trial.seconds.values()) * _scale(trial)


def eval_seconds(trial: Trial) -> float:
    """Greedy answers and k sampled ones to each held-out problem, at the trial's pace."""
    settings: Config = trial.config
    answers = settings.eval.problems * (1 + (settings.eval.k if settings.eval.k > 1 else 0))
    return trial.seconds["generate"] * answers / len(_completions(trial))


def _scale(trial: Trial) -> float:
    return trial.config.batch.prompts / len(trial.groups)


def _completions(trial: Trial) -> list[Completion]:
    return [completion for group in trial.groups for completion in group.completions]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
