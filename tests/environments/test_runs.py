"""Whole runs with environments: from a recipe and from Python, training and evaluation."""

import json
import pathlib
from typing import Any

import pytest

import groupwise
from environments import feedback
from environments.feedback import Feedback
from groupwise.environments.base import EnvironmentFactory, Reply
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import trl_environment
from groupwise.errors import ConfigError
from groupwise.load import load_parts
from groupwise.recipe import load_recipe
from groupwise.rollout.engine import run_sync
from groupwise.training.collect import collect_step
from groupwise.types import Problem

SMALL = [
    "steps=2",
    "batch.prompts=2",
    "batch.group_size=3",
    "rollout.max_completion_tokens=200",
    "rollout.max_prompt_tokens=4096",
    "task.train_size=20",
    "task.test_size=4",
    "eval.k=2",
    "eval.problems=2",
    "checkpoint.every=1",
]


def add(a: int, b: int) -> int:
    """Adds two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def metrics_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_with_an_environment_trains_evaluates_and_resumes(tmp_path: pathlib.Path) -> None:
    seen: list[Any] = []

    def saw(completions: Any, episode: Any, **columns: Any) -> list[float]:
        seen.extend(zip(completions, episode, strict=True))
        return [float(len(messages)) for messages in completions]

    def train(out: pathlib.Path, steps: int) -> groupwise.Result:
        return groupwise.train(
            load_recipe("demo", [*SMALL, f"steps={steps}"]),
            out,
            rewards=[groupwise.Reward("saw", saw, weight=0.1)],
            environment=EnvironmentFactory("Feedback", Feedback),
            quiet=True,
        )

    whole = train(tmp_path / "whole", 2)
    for line in metrics_of(whole.folder):
        assert line["episode/turns"] == 2 and line["episode/failed"] == 0
        assert line["episode/score/turns"] == 2
        assert line["rewards/Feedback"] >= 2
        assert line["reward"] == pytest.approx(
            line["rewards/Feedback"] + 0.1 * line["rewards/saw"], abs=1e-6
        )
        assert 0 <= line["episode/waiting"] <= 1
    assert whole.summary["after"]["rewards/Feedback"] >= 2, "evaluation runs episodes too"
    conversation, episode = seen[0]
    assert [m["role"] for m in conversation] == ["assistant", "user", "assistant", "user"]
    assert episode["scores"] == {"turns": 2.0} and len(episode["turns"]) == 2

    train(tmp_path / "halves", 1)
    again = train(tmp_path / "halves", 2)
    for name in ("loss", "reward", "tokens"):
        assert [line[name] for line in metrics_of(again.folder)] == pytest.approx(
            [line[name] for line in metrics_of(whole.folder)], abs=1e-5
        )


@pytest.mark.parametrize("timing", ["in_flight", pytest.param("ahead", marks=pytest.mark.slow)])
def test_episodes_are_sampled_beside_training(timing: str, tmp_path: pathlib.Path) -> None:
    """An environment that fails at once, now and then, is no reason to sample a group again."""

    class Breaks(Feedback):
        made = 0

        async def reset(self, problem: Problem, seed: int) -> Reply:
            Breaks.made += 1
            if Breaks.made % 3 == 0:
                raise RuntimeError("out of order")
            return Reply()

    result = groupwise.train(
        load_recipe("demo", [*SMALL, "steps=4", f"timing={timing}", "timing.max_staleness=1"]),
        tmp_path / "run",
        environment=EnvironmentFactory("Feedback", Breaks),
        quiet=True,
    )
    lines = metrics_of(result.folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert sum(line["episode/failed"] for line in lines) > 0
    if timing == "ahead":
        assert all(line["staleness_max"] <= 1 for line in lines)


def test_the_same_seed_gives_the_same_episodes() -> None:
    config = load_recipe("demo", SMALL)

    def answers() -> Any:
        environment = EnvironmentFactory("Feedback", Feedback)
        with load_parts(config, environment=environment) as parts:
            groups = run_sync(collect_step(parts, 0, 0)).groups
        # Which requests are computed together depends on time, and that rounds log-probs.
        return [(c.tokens, c.sampled, c.episode) for group in groups for c in group.completions]

    assert answers() == answers()


def test_a_recipe_names_tools_and_its_code_must_be_trusted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sums_tool.py").write_text(
        "import groupwise\n\n\n@groupwise.tool\ndef plus(a: int, b: int) -> int:\n"
        '    """Adds.\n\n    Args:\n        a: One.\n        b: Two.\n    """\n    return a + b\n'
    )
    recipe = tmp_path / "tools.yaml"
    recipe.write_text(
        f"environment:\n  kind: tools\n  functions: ['{tmp_path}/sums_tool.py:plus']\n"
        "  max_turns: 3\n"
    )
    with pytest.raises(ConfigError, match="--trust-code"):
        load_recipe(str(recipe))
    config = load_recipe(str(recipe), SMALL, trust_code=True)
    with load_parts(config) as parts:
        assert parts.episodes is not None and parts.episodes.limits.max_turns == 3
        groups = run_sync(collect_step(parts, 0, 0)).groups
    text = parts.policy.tokenizer.decode(list(groups[0].prompt_tokens))
    assert '"plus"' in text, "the embedded model's template shows no tools: they are described"
    assert all(c.episode is not None for group in groups for c in group.completions)


def test_code_that_is_no_tool_is_refused(tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "tools.yaml"
    recipe.write_text("environment: {kind: tools, functions: ['os:system']}\n")
    with pytest.raises(ConfigError, match=r"@groupwise\.tool"):
        load_recipe(str(recipe), trust_code=True)


def test_what_is_typed_needs_no_mark(tmp_path: pathlib.Path) -> None:
    (tmp_path / "typed_env.py").write_text(
        "class Box:\n    def reset(self, **row):\n        return ' Open it.'\n"
        "    def get_reward(self):\n        return 1.0\n"
    )
    config = load_recipe("demo", [*SMALL, f"environment.factory={tmp_path}/typed_env.py:Box"])
    assert config.environment.kind == "trl"
    with load_parts(config) as parts:
        groups = run_sync(collect_step(parts, 0, 0)).groups
    assert groups[0].scores["Box"] == (1.0,) * 3


def test_an_environment_alone_may_give_the_reward() -> None:
    config = load_recipe("demo", [*SMALL, "rewards=[]", f"environment={__file__}:Feedback"])
    with load_parts(config) as parts:
        groups = run_sync(collect_step(parts, 0, 0)).groups
    assert all(2 <= reward <= 4 for group in groups for reward in group.rewards if reward)
    assert [list(group.scores) for group in groups] == [["Feedback"]] * 2
    with pytest.raises(ConfigError, match="at least one reward"):
        load_recipe("demo", ["rewards=[]"])


def test_tools_must_say_what_they_take() -> None:
    def undocumented(a, b):  # type: ignore[no-untyped-def]
        return a

    with pytest.raises(ConfigError, match="undocumented does not say what it takes"):
        tools_environment([undocumented])
    with pytest.raises(ConfigError, match="a name of its own"):
        tools_environment([add, add])


def test_a_reward_of_the_environment_s_name_is_refused() -> None:
    class correct:
        def reset(self, **row: Any) -> None: ...
        def get_reward(self) -> float:
            return 1.0

    with pytest.raises(ConfigError, match="own reward is named 'correct'"):
        load_parts(load_recipe("demo", SMALL), environment=trl_environment(correct))


def test_temperatures_are_spread_over_episodes() -> None:
    config = load_recipe("demo", [*SMALL, "rollout.temperature_spread=[0.5,1.5]"])
    with load_parts(config, environment=EnvironmentFactory("Feedback", Feedback)) as parts:
        (group, _) = run_sync(collect_step(parts, 0, 0)).groups
    assert [completion.temperature for completion in group.completions] == [0.5, 1.0, 1.5]


def test_sampling_shows_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    from groupwise.samples.show import print_samples

    config = load_recipe("demo", [*SMALL, f"environment={feedback.__file__}:Feedback"])
    print_samples(config, None, 1, 0.0)
    shown = capsys.readouterr().out
    assert "tokens, eos" in shown and "Feedback" in shown, "with its own reward among the scores"
    assert "assistant [turn 1, " in shown and "assistant [turn 2, " in shown
    assert "user: no" in shown or "user: yes" in shown
    assert "(ended by itself; turns 2)" in shown
