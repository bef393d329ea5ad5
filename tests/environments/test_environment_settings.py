"""Every setting of an environment does something, or is refused with the kinds that have it."""

import asyncio
from pathlib import Path

import pytest

from environments.scripted import END, LIMITS, PROBLEM
from environments.templates import tokenizer_of
from environments.test_rounds import Together
from groupwise.cli.main import main
from groupwise.config import Config
from groupwise.environments.agent import agent_environment
from groupwise.environments.groups import Episodes
from groupwise.environments.processes import in_processes
from groupwise.environments.reasoning_gym import reasoning_gym_environment
from groupwise.errors import ConfigError
from groupwise.load import load_parts
from groupwise.recipe import load_recipe, parse
from groupwise.types import Problem, Sampling

KINDS = {
    "tools": "environment.functions=[calculate]",
    "trl": "environment.factory=my.py:Env",
    "guess_number": "environment=guess_number",
    "agent": "environment.function=my.py:run",
    "mcp": "environment={kind: mcp, command: [python, server.py]}",
    "openenv": "environment.url=http://127.0.0.1:8000",
    "reasoning_gym": "environment=reasoning_gym",
    "verifiers": "environment.env=wordle",
    "own": "environment=my.py:Env",
}
HAVE = {
    "isolation=thread": {"tools", "trl", "reasoning_gym", "own"},
    "weight=0.5": {"trl", "agent", "openenv", "reasoning_gym", "verifiers", "own"},
    "turn_rewards=true": {"openenv", "own"},
    "in_rounds=true": set(KINDS),
}


def with_setting(kind: str, setting: str) -> Config:
    task = {"reasoning_gym": ["task=gym:countdown"], "guess_number": ["task=guess_number"]}
    return parse({}, [*task.get(kind, ()), KINDS[kind], f"environment.{setting}"])


@pytest.mark.parametrize("setting", HAVE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_belongs_to_the_kinds_that_use_it(kind: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    if kind in HAVE[setting]:
        assert str(getattr(with_setting(kind, setting).environment, name)).lower() == value
        return
    with pytest.raises(
        ConfigError, match=rf"environment\.{name} is for environment\.kind="
    ) as said:
        with_setting(kind, setting)
    for other in HAVE[setting] - {"own"}:
        assert other in str(said.value)
    assert ("file.py:Class" in str(said.value)) == ("own" in HAVE[setting])


def test_the_command_line_refuses_it_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["groupwise", "check", "guess_number", "environment.isolation=process"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "environment.isolation is for environment.kind=tools or trl" in capsys.readouterr().err


def test_an_environment_without_rewards_cannot_be_the_only_one() -> None:
    with pytest.raises(ConfigError, match="at least one reward"):
        parse({}, [KINDS["tools"], "rewards=[]"])
    assert parse({}, [KINDS["own"], "rewards=[]"]).environment.reward_weight == 1.0


def test_a_class_without_get_reward_has_no_weight(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text("class Silent:\n    def reset(self, **row): ...\n")
    settings = [f"environment.factory={tmp_path}/silent.py:Silent", "environment.weight=0.5"]
    with pytest.raises(ConfigError, match=r"environment\.weight: Silent gives no reward"):
        load_parts(load_recipe("demo", settings))


def test_reasoning_gym_has_processes_of_its_own() -> None:
    factory = in_processes(reasoning_gym_environment("Again."))
    try:
        assert factory.make.__module__ == "groupwise.environments.processes"
    finally:
        factory.close()


def test_agents_take_their_turns_in_rounds() -> None:
    """Also one that asks for two things at once: it does not stand for another's episode."""

    async def run(base_url: str, api_key: str, problem: Problem) -> float:
        import openai

        messages = list(problem.prompt)
        number = int(problem.id)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            for turn in range(2):
                await asyncio.sleep(0.05 * number)
                asked = [
                    client.chat.completions.create(model="any", messages=messages)  # type: ignore
                    for _ in range(2 if number == 0 and turn else 1)
                ]
                await asyncio.gather(*asked)
        return 0.0

    engine, factory = Together(), agent_environment(run)
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), LIMITS, in_rounds=True)

    async def gather() -> None:
        problems = [Problem(str(n), PROBLEM.prompt) for n in range(3)]
        samplings = [Sampling(max_tokens=50)]
        await asyncio.gather(
            *(runner.group(p, engine, (int(p.id),), samplings, seed=5) for p in problems)
        )

    asyncio.run(gather())
    assert engine.rounds[0] == [0, 1, 2]
    assert [len(keys) >= 3 for keys in engine.rounds[:2]] == [True, True]
