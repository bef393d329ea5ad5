"""What a trial foretells: each line ok, or a warning with its fix. Pure functions of a trial."""

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.check.trial import Trial
from groupwise.config import Config
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
    if trial.templated is False:
        fix = "the model was not taught to chat: use its instruct version, or a plain prompt"
        return Verdict("prompts", text, fix)
    return Verdict("prompts", text)


def ends(trial: Trial) -> Verdict:
    completions = _completions(trial)
    cut = _share([c.truncated for c in completions])
    longest = max(len(c.tokens) for c in completions)
    limit = trial.config.rollout.max_completion_tokens
    text = f"{_percent(1 - cut)} end by themselves, {_percent(cut)} are cut off at {limit} tokens"
    if trial.turn_end is not None:
        fix = (
            f"the chat template ends a turn with {trial.turn_end!r}, which is not among the "
            f"model's eos tokens: rollout.stop=['{trial.turn_end}'], or mend generation_config.json"
        )
        return Verdict("ends", text, fix)
    if cut == 1:
        fix = (
            "no answer ends: look at some (groupwise sample); rollout.stop=['...'] where they go "
            f"on after the answer, rollout.max_completion_tokens={2 * limit} where they do not "
            "get there"
        )
        return Verdict("ends", text, fix)
    if cut > 0.2:
        return Verdict("ends", text, f"rollout.max_completion_tokens={2 * limit}")
    return Verdict("ends", f"{text}; the longest has {longest}")


def answers(trial: Trial) -> Verdict:
    found, formed = _share(trial.extracted), _share(trial.formatted)
    text = f"a final answer is found in {_percent(found)}, the form asked for in {_percent(formed)}"
    if trial.right is not None:
        text += f"; {_percent(_share(trial.right))} are right"
    if found < 0.5:
        fix = (
            "most answers cannot be read: look at some (groupwise sample), show the form by an "
            "example in the prompt, or open answers with a prefill"
        )
        return Verdict("answers", text, fix)
    return Verdict("answers", text)


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
        f"answers differ in reward in {_percent(useful)} of groups: about {expected:.0f} of "
        f"{config.batch.prompts} a step teach something"
    )
    if useful >= 0.3:
        return Verdict("spread", text)
    if trial.right is not None and _share(trial.right) > 0.9:
        return Verdict("spread", text, "nearly all is right already: use harder problems")
    fix = (
        f"easier problems or part marks; batch.group_size={2 * config.batch.group_size}; "
        "rollout.max_draws=3"
    )
    return Verdict("spread", text, fix)


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
    foreseen = trial.resident_gb + growth * max(trial.peak_gb - trial.resident_gb, 0.0)
    text = (
        f"about {foreseen:.1f} of {trial.available_gb:.0f} GB, of which {trial.resident_gb:.2g} GB "
        "weights and optimizer"
    )
    if foreseen > 0.9 * trial.available_gb:
        half = trial.config.batch.tokens_per_microbatch // 2
        fix = f"batch.tokens_per_microbatch={half}, gradient_checkpointing=true, or an adapter"
        return Verdict("memory", text, fix)
    return Verdict("memory", text)


def duration(trial: Trial) -> Verdict:
    config = trial.config
    step = step_seconds(trial)
    evals = eval_seconds(trial)
    count = 2 + (config.steps // config.eval.every if config.eval.every else 0)
    total = config.steps * step + count * evals
    phases = ", ".join(
        f"{name} {_time(seconds * _scale(trial))}"
        for name, seconds in trial.seconds.items()
        if seconds * _scale(trial) > 0.01 * step
    )
    text = (
        f"at most about {_time(step)} a step ({phases}); {count} evaluations of {_time(evals)}; "
        f"{config.steps} steps take {_time(total)}"
    )
    if count * evals > 0.5 * total and total > 60:
        fix = "evaluation takes most of it: a larger eval.every, a smaller eval.problems, eval.k=1"
        return Verdict("time", text, fix)
    return Verdict("time", text)


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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
