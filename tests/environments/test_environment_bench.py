"""The bench of environments: sound ones pass, each flaw is named on the policy that shows it."""

import io
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from environments import bench_environments as benched
from environments.test_runs import add
from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.environments.agent import agent_environment
from groupwise.environments.base import EnvironmentFactory, Reply, Turn
from groupwise.environments.bench import (
    Bench,
    EnvironmentReport,
    PolicyLine,
    bench_table,
    solved_problems,
)
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import trl_environment
from groupwise.errors import ConfigError
from groupwise.load import find_rewards
from groupwise.recipe import parse
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.base import Task
from groupwise.tasks.catalog import build_task
from groupwise.types import Problem

CONFIG = parse(
    {
        "task": {"kind": "arithmetic", "train_size": 20, "test_size": 4},
        "environment": {"kind": "my.py:Environment", "step_seconds": 5.0},
    }
)
TASK = build_task(CONFIG.task)
ALONE = CONFIG.model_copy(update={"rewards": ()})
"""The environment gives the only reward."""


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(find_rewards(CONFIG, TASK), 10.0, "skip") as own:
        yield own


@pytest.fixture(scope="module")
def nobody() -> Iterator[Scorer]:
    with Scorer([], 10.0, "skip") as own:
        yield own


def bench(
    environment: EnvironmentFactory, scorer: Scorer, config: Config = CONFIG, task: Task = TASK
) -> EnvironmentReport:
    return Bench(environment, config, scorer).run(solved_problems(task, 3))


def flaws(report: EnvironmentReport) -> dict[str, str]:
    return {line.policy: line.verdict for line in report.lines if line.flaw}


def line(report: EnvironmentReport, policy: str) -> PolicyLine:
    return next(line for line in report.lines if line.policy == policy)


def test_tools_with_the_task_s_own_reward_are_sound(scorer: Scorer) -> None:
    report = bench(tools_environment([add]), scorer)
    assert flaws(report) == {}
    assert report.measured_by == "what the task's right answer earns"
    assert line(report, "right answer").scores["correct"] == 1
    assert line(report, "wrong answer").scores["correct"] == 0
    spam = line(report, "tool spam")
    assert spam.turns == 8 and spam.calls == 64, "until the limit on turns"


@pytest.mark.parametrize("sound", [benched.SecondTry])
def test_more_than_one_attempt_is_no_flaw(sound: type, nobody: Scorer) -> None:
    report = bench(benched.factory(sound), nobody, ALONE)
    assert flaws(report) == {}
    assert report.honest == 1 and line(report, "no-op").reward == 0


def test_a_default_of_0_beside_negative_rewards_makes_doing_nothing_pay(nobody: Scorer) -> None:
    report = bench(trl_environment(benched.Submitted), nobody, ALONE)
    assert line(report, "right answer").reward == 1
    assert line(report, "wrong answer").reward == -1
    assert list(flaws(report)) == ["no-op"]
    assert "earns 0.00, and an honest failure -1.00: doing nothing pays" in flaws(report)["no-op"]
    assert flaws(bench(trl_environment(benched.Attempted), nobody, ALONE)) == {}


def test_a_verifier_that_can_be_asked_before_the_end_is_found(nobody: Scorer) -> None:
    report = bench(benched.factory(benched.Checked), nobody, ALONE)
    assert list(flaws(report)) == ["verifier probe"]
    assert flaws(report)["verifier probe"] == (
        "earns 1.00, and honest work 1.00: it will be learned"
    )


def test_an_answer_that_is_given_away_is_found(nobody: Scorer) -> None:
    assert list(flaws(bench(benched.factory(benched.Talkative), nobody, ALONE))) == [
        "verifier probe"
    ]


def test_replies_that_differ_for_the_same_seed_are_found(nobody: Scorer) -> None:
    report = bench(benched.factory(benched.Flaky), nobody, ALONE)
    assert set(flaws(report)) == {line.policy for line in report.lines}
    assert "the same seed gives different replies: " in flaws(report)["no-op"]
    start = bench(benched.factory(benched.OtherStart), nobody, ALONE)
    assert "it begins with" in flaws(start)["no-op"]


def test_what_makes_an_environment_fail_is_named(nobody: Scorer) -> None:
    report = bench(benched.factory(benched.Fragile), nobody, ALONE)
    assert set(flaws(report)) == {"no-op", "verifier probe", "tool spam"}
    assert "fails in 3 of 3 episodes: step() raised ValueError" in flaws(report)["no-op"]


def test_without_a_right_answer_the_rewards_most_is_the_measure(nobody: Scorer) -> None:
    """An environment that pays everybody, in a task that tells no answers."""

    class Generous(benched.SecondTry):
        def __init__(self, problem: Problem) -> None:
            self.answer, self.turns = "", 1

        async def score(self) -> dict[str, float | None]:
            return {"played": 1.0}

    task = Task("open", [Problem(str(n), f"Say {n}.") for n in range(20)], None)
    report = bench(benched.factory(Generous), nobody, ALONE, task)
    assert report.measured_by == "the most that the rewards can give" and report.honest == 1
    assert "no-op" in flaws(report) and "right answer" not in {n.policy for n in report.lines}


def test_a_model_s_reward_may_be_the_measure(nobody: Scorer) -> None:
    played = Bench(benched.factory(benched.SecondTry), ALONE, nobody)
    report = played.run(solved_problems(TASK, 2), model_earns=0.0)
    assert report.measured_by == "what the model earns" and "no-op" in flaws(report)


def test_the_table_shows_every_policy_and_only_text(nobody: Scorer) -> None:
    class Hostile(benched.SecondTry):
        async def step(self, turn: Turn) -> Reply:
            raise ValueError("[bold]\x1b[2J")

    report = bench(benched.factory(Hostile), nobody, ALONE)
    out = io.StringIO()
    Console(width=300, file=out).print(bench_table(report, "Hostile"))
    text = out.getvalue()
    assert "\x1b" not in text and "[bold]" in text and "verifier probe" in text


FILE = """
import groupwise
from environments.bench_environments import {kind} as Base


@groupwise.environment
class {kind}(Base):
    pass
"""


@pytest.mark.parametrize(("kind", "code"), [("SecondTry", 0), ("Checked", 1)])
def test_the_command(kind: str, code: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "played.py").write_text(FILE.format(kind=kind))
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "bench.json"
    recipe.write_text(
        f"task: {{train_size: 20, test_size: 4}}\nrewards: []\n"
        f"environment: '{tmp_path}/played.py:{kind}'\n"
    )
    words = ["environment", "bench", str(recipe), "--problems", "2", "--json", str(out)]
    with pytest.raises(ConfigError, match="--trust-code"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    result = CliRunner().invoke(app, [*words, "--trust-code"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    data = json.loads(out.read_text())
    assert data["flaws"] == code and data["problems"] == 2
    assert ("no policy that cheats" in result.output) == (code == 0)


def test_a_recipe_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="no environment"):
        CliRunner().invoke(app, ["environment", "bench", "demo"], catch_exceptions=False)


CHECK = {
    "type": "function",
    "function": {
        "name": "check",
        "parameters": {"type": "object", "properties": {"value": {"type": "string"}}},
    },
}


def agent(tools: bool, score: Callable[[str, str], float]) -> EnvironmentFactory:
    """An agent that answers calls of `check`, and scores the first turn without one."""
    import openai

    http = openai.DefaultHttpxClient(verify=False)  # one: reading certificates takes the longest

    def run(base_url: str, api_key: str, problem: Problem) -> float:
        messages: list[Any] = list(problem.prompt)
        answer = problem.columns["answer"]
        client = openai.OpenAI(base_url=base_url, api_key=api_key, http_client=http)
        shown: dict[str, Any] = {"tools": [CHECK]} if tools else {}
        while True:
            reply = client.chat.completions.create(model="any", messages=messages, **shown)
            said = reply.choices[0].message
            if not said.tool_calls:
                return score(said.content or "", answer)
            messages.append(said)
            for call in said.tool_calls:
                right = json.loads(call.function.arguments).get("value") == answer  # type: ignore
                content = f"{call.function.name}: {right}"  # type: ignore
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    return agent_environment(run)


def exact(text: str, answer: str) -> float:
    return float(f"<answer>{answer}</answer>" in text)


def test_agents_are_played_by_policies_too(nobody: Scorer) -> None:
    sound = bench(agent(False, exact), nobody, ALONE)
    assert flaws(sound) == {}
    assert line(sound, "right answer").reward == 1 and line(sound, "no-op").reward == 0
    probed = bench(agent(True, exact), nobody, ALONE)
    assert list(flaws(probed)) == ["verifier probe"]
    assert line(probed, "tool spam").turns == 8, "a limit that an agent meets is no failure"


def test_an_agent_that_pays_for_silence_or_fails_is_found(nobody: Scorer) -> None:
    def score(text: str, answer: str) -> float:
        return 1.0 if not text else exact(text, answer)

    report = bench(agent(False, score), nobody, ALONE)
    assert list(flaws(report)) == ["no-op"]
    fragile = bench(agent(False, lambda text, answer: float(text[0] == "<")), nobody, ALONE)
    assert "fails in 3 of 3 episodes: the function raised IndexError" in flaws(fragile)["no-op"]
