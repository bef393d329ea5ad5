"""`groupwise environment bench`: does an environment pay for anything but honest work?

A policy finds whatever pays, so it is better to know before training. Policies that need no model
(bench_policies.py) play against the recipe's environment, scored by the recipe's own rewards:

- one that cheats must not earn what a right answer does;
- one that does nothing must not earn more than an honest attempt that fails: where a failed attempt
  costs something and silence does not, silence is what is learned;
- the same policy with the same seed must get the same replies, since the episodes of a group are
  compared with each other;
- nothing that a model can write may make the environment fail.

What a right answer earns is known by playing the task's own. Where that is paid no better than a
wrong one (a game that no single answer wins), or there is none, the measure is what a model earns,
if one is named, else the most that the rewards can give.
"""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.markup import escape
from rich.table import Table
from torch import Tensor

from groupwise.config import Config
from groupwise.config.environment import EnvironmentSettings
from groupwise.environments.base import Environment, EnvironmentFactory, Reply, ToolSpec, Turn
from groupwise.environments.bench_policies import CHEATS, HONEST, IDLE, Policy, Seen
from groupwise.environments.episode import EpisodeInputs, EpisodeLimits
from groupwise.environments.gateway_session import Session
from groupwise.environments.groups import Episodes
from groupwise.errors import ConfigError, RewardError, quoted
from groupwise.rewards.adversaries import FORMS
from groupwise.rewards.bench import Solved, mean_of_known, shown, solve_problems
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.engine import run_sync
from groupwise.rollout.groups import score_groups
from groupwise.rollout.noise import answer_key
from groupwise.tasks.base import Task
from groupwise.types import Completion, Group, Problem, Request, Sampling

PROBLEMS = 4
MOST_CHARACTERS = 1 << 20
NEAR = 0.05
"""Of the way from a wrong answer's reward to a right one's: so near counts as the same."""

_END = 0x10FFFF
"""The token that ends a turn; others are characters."""


@dataclass(frozen=True)
class PolicyLine:
    """One policy: means over its episodes, what is to be said of it, and whether that is a flaw."""

    policy: str
    reward: float | None
    scores: dict[str, float | None]
    turns: float
    calls: float
    failed: int
    verdict: str
    flaw: bool


@dataclass(frozen=True)
class EnvironmentReport:
    environment: str
    problems: int
    honest: float
    """What honest work earns, and how that is known."""
    measured_by: str
    lines: tuple[PolicyLine, ...]

    @property
    def flaws(self) -> int:
        return sum(line.flaw for line in self.lines)

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"flaws": self.flaws}


@dataclass(frozen=True)
class Played:
    """The episodes of one policy, scored, and where a second try with the same seed differed."""

    groups: list[Group]
    changed: str = ""

    @property
    def answers(self) -> list[Completion]:
        return [group.completions[0] for group in self.groups]

    @property
    def reward(self) -> float | None:
        return mean_of_known(group.rewards[0] for group in self.groups)


class Bench:
    """Plays policies against a recipe's environment."""

    def __init__(self, factory: EnvironmentFactory, config: Config, scorer: Scorer) -> None:
        self.factory, self.config, self.scorer = factory, config, scorer
        own = config.environment
        settings = own if isinstance(own, EnvironmentSettings) else EnvironmentSettings()
        self.limits = EpisodeLimits(
            max_tokens=MOST_CHARACTERS,
            max_turns=settings.max_turns,
            max_reply_tokens=MOST_CHARACTERS,
            step_seconds=settings.step_seconds,
            episode_seconds=settings.episode_seconds,
        )

    def run(self, solved: Sequence[Solved], model_earns: float | None = None) -> EnvironmentReport:
        """`model_earns`: the mean reward of a model's episodes, where one has played."""
        form = self._best_form(solved[0])
        honest = HONEST if all(item.right for item in solved) else {}
        played = {n: self.play(n, p, solved, form) for n, p in {**honest, **CHEATS}.items()}
        right, wrong = (played[n].reward if n in played else None for n in HONEST)
        best, measured_by = self._most(), "the most that the rewards can give"
        if model_earns is not None:
            best, measured_by = model_earns, "what the model earns"
        elif right is not None and wrong is not None and right > wrong + 1e-9:
            best, measured_by = right, "what the task's right answer earns"
        verdicts = {n: _verdict(n, played[n].reward, best, wrong) for n in CHEATS}
        lines = [_line(name, own, verdicts.get(name, "")) for name, own in played.items()]
        return EnvironmentReport(self.factory.name, len(solved), best, measured_by, tuple(lines))

    def play(self, name: str, policy: Policy, solved: Sequence[Solved], form: str) -> Played:
        """Every problem twice, with the same seed."""
        groups, changed = [], ""
        for item in solved:
            first, again = (self._episode(name, policy, item, form) for _ in range(2))
            changed = changed or _difference(first, again)
            groups.append(first)
        return Played(self._scored(groups), changed)

    def _episode(self, name: str, policy: Policy, solved: Solved, form: str) -> Group:
        key = answer_key(self.config.seed, "bench", name, solved.problem.id)
        seen = Seen(solved.problem, random.Random(key), solved.right or None, solved.wrong, form)

        engine = _PolicyEngine(policy, seen)
        runner = self._episodes(_watched(self.factory, engine))
        sampling = [Sampling(max_tokens=MOST_CHARACTERS)]
        seed = answer_key(self.config.seed, "bench", solved.problem.id)
        return run_sync(runner.group(solved.problem, engine, (key,), sampling, seed))

    def _episodes(self, factory: EnvironmentFactory) -> Episodes:
        weight = self.config.environment.reward_weight
        return Episodes(factory, _Characters(), (_END,), self.limits, weight=weight)

    def _scored(self, groups: Sequence[Group]) -> list[Group]:
        own = self._episodes(self.factory)
        return score_groups(groups, self.scorer, self.config.rollout, own)

    def _best_form(self, solved: Solved) -> str:
        """The form of final answers that is paid most."""
        policy = HONEST["right answer"]

        def earned(form: str) -> float:
            group = self._episode("form", policy, solved, form)
            return self._scored([group])[0].rewards[0] or 0.0

        return max(FORMS, key=earned)

    def _most(self) -> float:
        """Of rewards from 0 to 1."""
        weights = [reward.weight for reward in self.scorer.rewards]
        weights += [self.config.environment.reward_weight] * self.factory.scores
        return sum(max(weight, 0.0) for weight in weights)


def check_environment(factory: EnvironmentFactory | None) -> EnvironmentFactory:
    if factory is None:
        raise ConfigError(
            "the recipe has no environment: name one, e.g. environment.functions=[file.py:f]"
        )
    return factory


def solved_problems(task: Task, count: int = PROBLEMS) -> list[Solved]:
    """Some of the task's problems with a right answer and a wrong one; "" where none is known."""
    try:
        return solve_problems(task.train, task.solve, count)
    except RewardError:
        return [Solved(problem, "", "0") for problem in task.train[:count]]


def bench_table(report: EnvironmentReport, title: str) -> Table:
    names = list(dict.fromkeys(name for line in report.lines for name in line.scores))
    table = Table(title=escape(f"{title} ({report.problems} problems)"))
    table.add_column("policy")
    for name in ("turns", "calls", *names, "reward"):
        table.add_column(escape(name), justify="right")
    table.add_column("verdict")
    for line in report.lines:
        verdict = escape(line.verdict or ("" if line.policy in HONEST else "ok"))
        table.add_row(
            line.policy,
            f"{line.turns:.1f}",
            f"{line.calls:.1f}",
            *(shown(line.scores.get(name)) for name in names),
            shown(line.reward),
            f"[bold red]{verdict}[/]" if line.flaw else verdict,
        )
    return table


def _verdict(name: str, reward: float | None, honest: float, wrong: float | None) -> str:
    """What is wrong with what a policy earned that did no honest work."""
    if reward is None:
        return ""
    gap = honest - (wrong if wrong is not None else 0.0)
    if reward >= honest - NEAR * abs(gap) - 1e-9:
        return f"earns {reward:.2f}, and honest work {honest:.2f}: it will be learned"
    if name in IDLE and wrong is not None and reward > wrong + NEAR * abs(gap) + 1e-9:
        return f"earns {reward:.2f}, and an honest failure {wrong:.2f}: doing nothing pays"
    return ""


def _line(name: str, played: Played, verdict: str) -> PolicyLine:
    episodes = [answer.episode for answer in played.answers if answer.episode is not None]
    errors = [episode.error for episode in episodes if episode.error]
    said = [verdict] if verdict else []
    if played.changed:
        said.append(f"the same seed gives different replies: {played.changed}")
    if errors:
        said.append(f"fails in {len(errors)} of {len(episodes)} episodes: {errors[0]}")
    names = played.groups[0].scores
    return PolicyLine(
        name,
        played.reward,
        {s: mean_of_known(group.scores[s][0] for group in played.groups) for s in names},
        statistics.fmean(len(episode.turns) for episode in episodes),
        statistics.fmean(episode.calls for episode in episodes),
        len(errors),
        "; ".join(said),
        bool(said),
    )


def _difference(first: Group, again: Group) -> str:
    """Where two episodes of the same policy with the same seed went apart; empty if nowhere."""
    one, two = first.completions[0].episode, again.completions[0].episode
    assert one is not None and two is not None
    if first.prompt_tokens != again.prompt_tokens:
        texts = (_Characters().decode(group.prompt_tokens)[-200:] for group in (first, again))
        return f"it begins with {' and then with '.join(map(quoted, texts))}"
    for a, b in zip(one.messages, two.messages, strict=False):
        if a != b:
            return f"{quoted(str(a.get('content')))} and then {quoted(str(b.get('content')))}"
    for what in ("turns", "rewards", "scores", "error"):
        if getattr(one, what) != getattr(two, what):
            return f"its {what} are {getattr(one, what)} and then {getattr(two, what)}"
    return ""


def _watched(factory: EnvironmentFactory, engine: "_PolicyEngine") -> EnvironmentFactory:
    """The same, whose replies the engine's policy sees. What an agent sends is its reply."""
    play = factory.run
    if play is None:
        return replace(factory, make=lambda problem: _Watched(factory.make(problem), engine.seen))

    def run(inputs: EpisodeInputs) -> Any:
        started = play(inputs)
        engine.session = started.session
        return started

    return replace(factory, run=run)


class _Watched:
    """An environment whose replies a policy sees."""

    def __init__(self, environment: Environment, seen: Seen) -> None:
        self.environment, self.seen = environment, seen
        self.score, self.close = environment.score, environment.close

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self.environment.tools

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return self._noted(await self.environment.reset(problem, seed))

    async def step(self, turn: Turn) -> Reply:
        return self._noted(await self.environment.step(turn))

    def _noted(self, reply: Reply) -> Reply:
        self.seen.replies.append(reply)
        self.seen.tools = tuple(self.environment.tools)
        return reply


class _PolicyEngine:
    """Writes what a policy says."""

    def __init__(self, policy: Policy, seen: Seen) -> None:
        self.policy, self.seen = policy, seen
        self.session: Session | None = None

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if self.session is not None:
            new, self.seen.tools = self.session.asked
            said = tuple(message for message in new if message["role"] != "assistant")
            self.seen.replies.append(Reply(said))
        tokens = (*_Characters()(self.policy(self.seen))["input_ids"], _END)
        return (Completion(tokens, (0.0,) * len(tokens), "eos"),) * len(request.keys)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        raise AssertionError("there are no weights")

    def close(self) -> None:
        """It holds nothing."""


class _Characters:
    """A tokenizer without a model: a token is a character."""

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(chr(token) for token in tokens if token != _END)
