"""Symptoms in the update: a policy that collapses, runs away, or does not move."""

from groupwise.config import Config
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import START, WINDOW, History, beyond, percent

LOW_AFTER = 40
"""Steps without any change from which the learning rate is called too low."""


def entropy_collapse(history: History, config: Config | None, standing: bool) -> Finding | None:
    """The policy always says the same, before it is right: there is no variety to learn from.

    A policy that is right may be sure, and one whose answers still differ in reward still learns.
    """
    before, after = history.start("entropy"), history.now("entropy")
    if before is None or after is None or (history.now("accuracy") or 0) >= 0.8:
        return None
    if not beyond(history.now("no_spread"), 0.5, 0.4, standing):
        return None
    limit = min(0.2 * before, 0.1)
    if not beyond(after, limit, 1.5 * limit, standing):
        return None
    edges = None if config is None else config.algorithm.surrogate.clip_edges()
    higher = 0.28 if edges is None else max(0.28, edges[1] - 1 + 0.08)
    return Finding(
        "Entropy collapse: the policy has become sure before it is right",
        f"entropy fell from {before:.3f} to {after:.4f} nats a token"
        + _accuracy(history)
        + f", and {percent(history.now('no_spread') or 0)} of groups have no spread"
        + f" ({history.recent} against the first 5)",
        f"algorithm.clip_high={higher:.2g} (DAPO's clip-higher), algorithm.entropy_target="
        f"{0.5 * before:.2g}, rollout.temperature=1.0 or a little above, a lower optimizer.lr",
    )


def kl_blowup(history: History, config: Config | None, standing: bool) -> Finding | None:
    """The policy is far from the reference that it was to stay near, or leaves it suddenly."""
    newest, earlier = history.now("kl", START), history.earlier("kl")
    if newest is None:
        return None
    far = beyond(newest, 1.0, 0.7, standing)
    jump = earlier is not None and newest > 0.1 and newest > 10 * max(earlier, 1e-6)
    if not far and not jump:
        return None
    weight = 0.0 if config is None else config.algorithm.kl_weight
    raised = f"algorithm.kl_weight={3 * weight:.2g}" if weight else "a higher algorithm.kl_weight"
    came = "" if earlier is None else f", {earlier:.3g} in the steps before"
    return Finding(
        "KL blow-up: the policy runs away from its reference",
        f"KL is {newest:.3g} nats a token over the last {START} steps{came}",
        f"{raised}, a lower optimizer.lr, batch.epochs=1; if the distance is wanted, a reference "
        "that follows: reference.kind=copied",
        "error" if newest > 5 else "warning",
    )


def sampler_gap(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Sampler and trainer disagree on how likely the same tokens are."""
    gap = history.now("sampler_gap")
    if history.now("staleness"):
        return _old_answers(history, gap or 0.0, standing)
    if not beyond(gap, 0.05, 0.04, standing):
        return None
    fixes = ["algorithm.mismatch=token corrects for it"]
    if config is not None:
        rollout = config.rollout
        filters = {
            "top_p=1": rollout.top_p < 1,
            "top_k=0": rollout.top_k > 0,
            "min_p=0": rollout.min_p > 0,
            "repetition_penalty=1": rollout.repetition_penalty != 1,
        }
        asked = [f"rollout.{fix}" for fix, wrong in filters.items() if wrong]
        if asked:
            fixes.append(f"{', '.join(asked)}: such filters change what is drawn from")
        if config.algorithm.mismatch != "none":
            fixes[0] = f"algorithm.mismatch_max={config.algorithm.mismatch_max:g} bounds the damage"
    fixes.append("precision=fp32 or engine.kind=transformers tell whether numerics are the cause")
    return Finding(
        "Sampler and trainer disagree",
        f"the log-prob of a sampled token differs by {gap or 0:.3f} on average ({history.recent}); "
        "below 0.02 is rounding",
        "; ".join(fixes),
        "error" if (gap or 0) > 0.3 else "warning",
    )


def _old_answers(history: History, gap: float, standing: bool) -> Finding | None:
    """Answers by older weights: the gap is how far the policy has moved since, and that is meant.

    Only where it has moved so far that most of an answer is cut by the correction's bounds.
    """
    if not beyond(gap, 0.7, 0.6, standing):
        return None
    return Finding(
        "The policy outruns its answers",
        f"between sampling and learning the log-prob of a token changes by {gap:.3f} on average "
        f"({history.recent}), with answers {history.now('staleness') or 0:.1f} updates old",
        "a lower optimizer.lr, or timing=in_turn",
    )


def learning_rate_high(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Steps that overshoot: numbers that are not finite, most tokens clipped, gradients exploding.

    A gradient norm alone says little, so it counts only together with a falling reward.
    """
    newly = {k: v for k, v in history.broken.items() if history.step - v < WINDOW}
    reasons = [
        f"{name} was not finite at step {newly[name]}"
        for name in ("loss", "grad_norm")
        if name in newly
    ]
    clipped = (history.now("clip_low") or 0.0) + (history.now("clip_high") or 0.0)
    if beyond(clipped, 0.3, 0.2, standing):
        reasons.append(f"{percent(clipped)} of tokens are clipped")
    newest, earlier = history.now("grad_norm", START), history.earlier("grad_norm")
    if newest is not None and earlier is not None:
        grown = beyond(newest / max(earlier, 1e-9), 10.0, 5.0, standing)
        if grown and (fall := _fall(history)) > 0.3:
            reasons.append(
                f"the gradient norm went from {earlier:.3g} to {newest:.3g} while "
                f"{percent(fall)} of the reward gained was lost"
            )
    if not reasons:
        return None
    return Finding(
        "Learning rate too high",
        f"{'; '.join(reasons)} ({history.recent})",
        f"{_rate(config, 1 / 3)}, optimizer.warmup=10, batch.epochs=1; go on from a checkpoint "
        "before it",
        "error" if newly else "warning",
    )


def learning_rate_low(history: History, config: Config | None, standing: bool) -> Finding | None:
    """There is something to learn, and after many steps nothing about the policy has changed."""
    if history.rows < LOW_AFTER or (history.now("no_spread") or 0) >= 0.8:
        return None
    if config is not None and (history.now("lr") or 0) < 0.5 * config.optimizer.lr:
        return None
    changes = {}
    for name in ("entropy", "tokens"):
        before, after = history.start(name), history.now(name)
        if before is not None and after is not None and before > 0:
            changes[name] = abs(after / before - 1)
    before, after = history.start("reward"), history.now("reward")
    limit = 0.08 if standing else 0.05
    if before is None or after is None or "entropy" not in changes:
        return None
    noise = 2 * history.noise("reward")
    if max(changes.values()) > limit or abs(after - before) > max(noise, 0.02 * abs(before)):
        return None
    moved = ", ".join(f"{name} by {100 * change:.1f} %" for name, change in changes.items())
    return Finding(
        "Learning rate too low: nothing changes",
        f"after {history.rows} steps the reward is {after:.3f} ({before:.3f} at first) and the "
        f"policy has hardly moved: {moved}",
        f"{_rate(config, 3)}; more answers a problem (batch.group_size) make a clearer signal",
    )


def accuracy_lost(history: History, config: Config | None, standing: bool) -> Finding | None:
    """What the model could do at the start is gone."""
    before, after = history.start("accuracy"), history.now("accuracy")
    if before is None or after is None or before < 0.05:
        return None
    if not beyond(after / before, 0.3, 0.5, standing):
        return None
    return Finding(
        "Accuracy is lost: the model solves less than at the start",
        f"{percent(after)} of training answers are right, {percent(before)} in the first {START} "
        f"steps ({history.recent})",
        f"{_rate(config, 1 / 3)}; algorithm.kl_weight=0.02 holds the policy near its start; look "
        "for a reward that wrong answers win: groupwise reward bench",
        "error",
    )


def _rate(config: Config | None, times: float) -> str:
    """The learning rate that is advised: so many times the present one."""
    if config is None:
        return f"a {'lower' if times < 1 else 'higher'} optimizer.lr"
    lr = config.optimizer.lr
    return f"optimizer.lr={times * lr:.2g} (now {lr:.2g})"


def _fall(history: History) -> float:
    """The share of the best reward's rise over the start that is lost again."""
    before, after = history.start("reward"), history.now("reward", START)
    if before is None or after is None:
        return 0.0
    best = history.columns["reward"].best
    scale = max(best - before, 0.1 * abs(best), 1e-6)
    return max(best - after, 0.0) / scale


def _accuracy(history: History) -> str:
    accuracy = history.now("accuracy")
    return "" if accuracy is None else f" at an accuracy of {percent(accuracy)}"
