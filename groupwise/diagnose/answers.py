"""Symptoms in the answers themselves: cut off, endless, ever longer or ever shorter."""

from groupwise.config import Config
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import History, beyond, percent


def eos_never(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Not one answer of the run has ended by itself."""
    if not history.always("truncated", 1.0):
        return None
    return Finding(
        "No answer ever ends: the end-of-sequence token is never produced",
        f"all answers of all {history.rows} steps ran to the limit of "
        f"{_limit(history, config)} tokens",
        "look at answers (groupwise sample RUN): if they go on after the answer, the chat template "
        "or the model's eos_token_id is wrong, or a base model was never taught to stop: set "
        "rollout.stop to a string that ends an answer. If they are cut off in mid-thought, raise "
        "rollout.max_completion_tokens",
        "error",
    )


def truncated(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Most answers are cut off before they say their result."""
    share = history.now("truncated")
    if history.always("truncated", 1.0) or not beyond(share, 0.5, 0.4, standing):
        return None
    limit = _limit(history, config)
    return Finding(
        "Most answers are cut off by the length limit",
        f"{percent(share or 0)} of answers reached the limit of {limit} tokens ({history.recent})",
        f"rollout.max_completion_tokens={2 * limit}; or teach shortness: rollout.overlong_buffer="
        f"{max(limit // 4, 1)}; algorithm.mask_truncated=true keeps cut-off answers out of the "
        "loss",
        "error" if (share or 0) >= 0.9 else "warning",
    )


def length_explosion(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Answers get longer and it does not pay: more are cut off, or reward stays where it was."""
    before, after = history.start("tokens"), history.now("tokens")
    if before is None or after is None or not beyond(after / max(before, 1), 2.0, 1.7, standing):
        return None
    cut = (history.now("truncated") or 0) - (history.start("truncated") or 0)
    gain = _gain(history)
    if not beyond(cut, 0.2, 0.1, standing) and gain > 2 * history.noise("reward"):
        return None
    return Finding(
        "Length explosion: answers get longer without getting better",
        f"answers went from {before:.0f} to {after:.0f} tokens; cut off: {100 * cut:+.0f} points; "
        f"reward {gain:+.3f} ({history.recent} against the first 5)",
        "algorithm=dr_grpo or dapo, which do not favour long wrong answers; "
        "rollout.overlong_buffer, or a length reward of small weight; a lower optimizer.lr",
    )


def length_collapse(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Answers shrink and it does not pay: the model stops working things out."""
    before, after = history.start("tokens"), history.now("tokens")
    if before is None or after is None or not beyond(after / max(before, 1), 0.35, 0.45, standing):
        return None
    gain = _gain(history)
    if gain > 2 * history.noise("reward"):
        return None
    return Finding(
        "Length collapse: answers shrink without getting better",
        f"answers went from {before:.0f} to {after:.0f} tokens, reward {gain:+.3f} "
        f"({history.recent} against the first 5)",
        "look for a reward that short answers win (length or overlong penalties: lower their "
        "weight); a lower optimizer.lr; algorithm.kl_weight=0.02 holds the policy near its start",
    )


def _gain(history: History) -> float:
    """Accuracy gained since the start where it is measured, else reward."""
    name = "accuracy" if "accuracy" in history.columns else "reward"
    return (history.now(name) or 0.0) - (history.start(name) or 0.0)


def _limit(history: History, config: Config | None) -> int:
    if config is not None:
        return config.rollout.max_completion_tokens
    column = history.columns.get("tokens_max")
    return 0 if column is None else int(column.high)
