"""Symptoms in the rewards: nothing to learn from, or learning the wrong thing."""

from groupwise.config import Config
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import WINDOW, History, beyond, percent

SOLVED = 0.95
"""Mean accuracy from which equal answers mean success."""


def saturated(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Most groups are right on every answer: the problems have nothing left to teach."""
    share, solved = history.now("no_spread"), _solved(history, config)
    if solved is None or not beyond(share, 0.8, 0.7, standing):
        return None
    if not beyond(solved, SOLVED, 0.9, standing):
        return None
    reward = history.now("reward")
    return Finding(
        "Reward saturated: nearly every answer is right",
        f"{percent(solved)} of what the rewards can give is reached, and {percent(share or 0)} of "
        f"groups have no answer that beats another (reward {reward or 0:.3f}, {history.recent})",
        "stop here, or train on harder problems (task.*); rollout.max_draws=3 draws more problems "
        "until some are hard enough",
        "info",
    )


def no_spread(history: History, config: Config | None, standing: bool) -> Finding | None:
    """All answers to a problem score the same, without being right: there is no gradient."""
    share, solved = history.now("no_spread"), _solved(history, config)
    if not beyond(share, 0.8, 0.7, standing):
        return None
    if solved is not None and solved >= 0.9:
        return None
    share = share or 0.0
    sampling = "rollout.temperature=1.0, batch.group_size=16"
    if config is not None and config.rollout.temperature >= 1:
        sampling = f"batch.group_size={2 * config.batch.group_size}"
    return Finding(
        "No reward spread: answers to a problem all score the same",
        f"{percent(share)} of groups have no answer that beats another, so they teach nothing "
        f"(mean reward {history.now('reward') or 0:.3f}, {history.recent})",
        "easier problems or a reward that gives part marks; more variety: "
        f"{sampling}; rollout.max_draws=3 replaces such groups",
        "error" if share >= 0.98 else "warning",
    )


def format_never_found(history: History, config: Config | None, standing: bool) -> Finding | None:
    """The form that the prompt asks for is in no answer, so its reward never teaches it."""
    for name in [f"rewards/{n}" for n in history.names("rewards/") if "format" in n]:
        values = history.columns[name].last(WINDOW)
        if history.rows < WINDOW or history.now(name) is None or max(values) > 0:
            continue
        return Finding(
            "Format never found",
            f"{name} was 0 for every answer of {history.recent}",
            "look at answers (groupwise sample RUN): say the form in the prompt with an example, "
            "start from a model that follows instructions, or open answers with a prefill; raise "
            "rollout.max_completion_tokens if answers are cut off before they get there",
            "error",
        )
    return None


def one_reward_dominates(history: History, config: Config | None, standing: bool) -> Finding | None:
    """One reward's scale hides another that still has something to teach.

    A reward's say is its part in the spread within groups, weight included. A part that is small
    because its reward hardly varies any more is no symptom.
    """
    spreads = {name: history.now(f"spread/{name}") or 0.0 for name in history.names("spread/")}
    spreads = {name: spread for name, spread in spreads.items() if spread > 0}
    total = sum(spreads.values())
    if history.rows < WINDOW or len(spreads) < 2:
        return None
    first = max(spreads, key=lambda name: spreads[name])
    for name, spread in spreads.items():
        varied = history.now(f"varied/{name}")
        hidden = beyond(spread / total, 0.03, 0.05, standing)
        if name != first and hidden and beyond(varied, 0.3, 0.2, standing):
            return Finding(
                f"One reward dominates: {first} hides {name}",
                f"{first} makes {percent(spreads[first] / total)} of the spread within groups, "
                f"{name} {100 * spread / total:.1f} %, though {name} differs between answers in "
                f"{percent(varied or 0)} of groups ({history.recent})",
                f"raise the weight of {name} or lower that of {first} under rewards:, or "
                "algorithm.advantage=gdpo, which puts rewards on one scale",
            )
    return None


def reward_hacking(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Training reward goes up while validation accuracy does not.

    Compares the newest evaluation with the one four evaluations before (or the first). Gaming shows
    on validation problems too: their reward rises without their accuracy. Where it does not, either
    the problems are learned by heart (training accuracy leaves validation accuracy behind), or
    sampled answers are merely catching up with greedy ones, which is no symptom.
    """
    steps = history.evaluations()
    if len(steps) < 3:
        return None
    first, last = steps[0], steps[-1]
    held_out, reward, held_reward, accuracy = (
        _change(history, name, first, last)
        for name in ("eval/accuracy", "reward", "eval/reward", "accuracy")
    )
    if held_out is None or reward is None or held_out[0] > SOLVED:
        return None
    problems = history.now("eval/problems", 1) or 100.0
    error = (max(held_out[0] * (1 - held_out[0]), 0.01) / max(problems, 1.0)) ** 0.5
    if held_out[1] > held_out[0] + error * (2 if standing else 1):
        return None
    spread = history.around("reward_std", first) or 0.0
    needed = max(0.1 * abs(reward[0]), 0.25 * spread, 2 * history.noise("reward"), 1e-3)
    needed *= 0.5 if standing else 1
    rises = reward[1] - reward[0] >= needed
    by_heart = accuracy is not None and accuracy[1] > held_out[1] + 0.15
    gamed = not by_heart if held_reward is None else held_reward[1] - held_reward[0] >= needed
    if not rises or not (gamed or by_heart):
        return None
    evidence = (
        f"from step {first} to {last} the training reward went from {reward[0]:.3f} to "
        f"{reward[1]:.3f}, validation accuracy from {percent(held_out[0])} to "
        f"{percent(held_out[1])} (chance alone: {100 * error:.1f} points)"
    )
    severity = "error" if held_out[1] < held_out[0] - 2 * error else "warning"
    near = "algorithm.kl_weight=0.02 holds the policy near its start"
    if gamed:
        return Finding(
            "Likely reward hacking: reward rises, validation accuracy does not",
            evidence,
            "read the best-rewarded answers of the last step; try groupwise reward bench; weigh "
            f"`correct` more and form or length less; {near}",
            severity,
        )
    return Finding(
        "Learned by heart: training reward rises, validation accuracy does not",
        f"{evidence}; training accuracy is far above it",
        "more problems (task.*), fewer steps; stop at the best evaluation, which is in best/; "
        f"{near}",
        severity,
    )


def _change(history: History, name: str, first: int, last: int) -> tuple[float, float] | None:
    """A column at two steps: evaluations as they are, training as a mean over a few steps."""
    before, after = history.around(name, first), history.around(name, last)
    return None if before is None or after is None else (before, after)


def _solved(history: History, config: Config | None) -> float | None:
    """How much of what is to be had is reached: accuracy, or reward over the sum of weights."""
    accuracy = history.now("accuracy")
    if accuracy is not None:
        return accuracy
    reward = history.now("reward")
    if reward is None or config is None:
        return None
    best = sum(max(setting.weight, 0.0) for setting in config.rewards)
    return reward / best if best > 0 else None
