"""Symptoms in conversations with an environment: calls that are missing, broken or endless."""

from groupwise.config import Config
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import History, beyond, percent
from groupwise.diagnose.speed import LEAST

GOOD_ENOUGH = 0.9
"""Accuracy from which a model that calls no tool does not need one."""


def environment_failed(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Episodes end since their environment raised, hung, or returned what is no reply."""
    share = history.now("episode/failed") or 0.0
    if not beyond(share, 0.1, 0.05, standing):
        return None
    return Finding(
        "The environment fails",
        f"{percent(share)} of episodes were ended by their environment ({history.recent}); they "
        "are not learned from",
        "the log names the first failure of each step: fix that; environment.step_seconds is how "
        "long one reply may take, environment.max_open how many episodes are open at a time",
        "error" if share >= 0.5 else "warning",
    )


def environment_slow(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Episodes wait for their environment most of the time, and the step waits for them."""
    share, sampling = history.now("episode/waiting"), history.now("seconds/generate")
    seconds = history.now("seconds")
    if not beyond(share, 0.5, 0.4, standing) or sampling is None or sampling < LEAST:
        return None
    if not beyond(sampling / max(seconds or sampling, 1e-9), 0.5, 0.4, standing):
        return None
    return Finding(
        "The environment is slow",
        f"{percent(share or 0)} of the time of episodes is spent waiting for the environment, and "
        f"sampling takes {sampling:.1f} of {seconds or sampling:.1f} seconds a step "
        f"({history.recent})",
        "a faster tool, or one that remembers its answers; more episodes side by side: "
        "batch.prompts, environment.max_open; timing.kind=ahead learns meanwhile; a lower "
        "environment.step_seconds ends calls that hang",
        "info",
    )


def tools_never_called(history: History, config: Config | None, standing: bool) -> Finding | None:
    """There are tools, and no answer calls one, though answers are often wrong."""
    if not history.now("episode/tools") or (history.now("accuracy") or 0) >= GOOD_ENOUGH:
        return None
    share = history.now("episode/called")
    if not beyond(share, 0.02, 0.05, standing):
        return None
    return Finding(
        "The tools are never called",
        f"{100 * (share or 0):.1f} % of episodes call a tool ({history.recent})",
        "look at answers (groupwise sample RUN): say in the prompt when to call a tool, with an "
        "example; start from a model that knows tool calls; a reward of small weight that names "
        "`episode` can pay for the first call",
    )


def calls_never_end(history: History, config: Config | None, standing: bool) -> Finding | None:
    """The model calls tools until a limit stops it, and never says an answer."""
    share = history.now("episode/unanswered")
    if _loops(history, standing) or not beyond(share, 0.5, 0.4, standing):
        return None
    turns, calls = history.now("episode/turns") or 0.0, history.now("episode/calls") or 0.0
    return Finding(
        "The model calls tools and never answers",
        f"{percent(share or 0)} of episodes were still calling when a limit ended them, after "
        f"{turns:.1f} turns and {calls:.1f} calls on average ({history.recent})",
        "say in the prompt how an answer ends; raise environment.max_turns and "
        "rollout.max_completion_tokens if the work takes that long; a reward of small weight that "
        "names `episode` can take something off for each call",
    )


def malformed_calls(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Many calls cannot be read."""
    calls, wrong = history.now("episode/calls"), history.now("episode/malformed")
    if not calls or wrong is None or calls < 0.05:
        return None
    if not beyond(wrong / calls, 0.2, 0.15, standing):
        return None
    return Finding(
        "Tool calls cannot be read",
        f"{percent(wrong / calls)} of calls are malformed: {wrong:.2f} of {calls:.2f} an episode "
        f"({history.recent})",
        "look at answers (groupwise sample RUN): the model may use another form than its chat "
        "template shows, or be cut off within a call (raise rollout.max_completion_tokens); show "
        "a call in the prompt; a lower rollout.temperature",
    )


def repeated_calls(history: History, config: Config | None, standing: bool) -> Finding | None:
    """The same call again and again, in one episode."""
    if not _loops(history, standing):
        return None
    return Finding(
        "Loops: the same tool call again and again",
        f"{percent(history.now('episode/repeated') or 0)} of the calls of an episode were made in "
        f"it before, with the same arguments ({history.recent})",
        "look at answers (groupwise sample RUN): a reply that says nothing new is asked for again, "
        "so let errors say what to do instead; let the environment refuse a call that it has "
        "answered; a lower environment.max_turns",
    )


def turn_limit(history: History, config: Config | None, standing: bool) -> Finding | None:
    """Most episodes are ended by their limit on turns, and not since they still call tools."""
    share = history.now("episode/turn_limit")
    still_calling = beyond(history.now("episode/unanswered"), 0.5, 0.4, standing)
    if still_calling or not beyond(share, 0.5, 0.4, standing):
        return None
    turns = history.now("episode/turns") or 0.0
    limit = f"environment.max_turns={2 * round(turns)}" if turns >= 1 else "environment.max_turns"
    return Finding(
        "Most episodes hit the turn limit",
        f"{percent(share or 0)} of episodes ended by the limit on turns, after {turns:.1f} on "
        f"average ({history.recent})",
        f"a higher limit ({limit}), an environment that says when it is over (done=True), or a "
        "reward for ending early",
    )


def _loops(history: History, standing: bool) -> bool:
    return beyond(history.now("episode/repeated"), 0.3, 0.2, standing)
