"""Every symptom on a run that shows it, and none on runs that do not."""

import math
import pathlib
import re
from typing import Any

import pytest

from groupwise.config import Config
from groupwise.diagnose import SYMPTOMS, Finding, diagnose
from groupwise.recipe import parse
from groupwise.tracking.run import read_lines
from synthetic_runs import Row, always, healthy_run, ramp, tool_run

CONFIG = parse(
    {
        "rollout": {"max_completion_tokens": 256},
        "algorithm": {"kl_weight": 0.02},
        "optimizer": {"lr": 1e-6},
        "environment": "my.py:Environment",
    }
)


def evals_that_stay(rows: list[Row], accuracy: float) -> list[Row]:
    return [row | {"eval/accuracy": accuracy} if "eval/accuracy" in row else row for row in rows]


SLOW_REWARD: dict[str, Any] = {"seconds__reward": always(6.0), "seconds__generate": always(1.0)}
MEMORY = [math.nan if step == 58 else 0.5 for step in range(61)]

# What each symptom looks like: a run, and what its evidence must say.
ILL: dict[str, tuple[list[Row], str]] = {
    "no_spread": (
        healthy_run(no_spread=always(0.92), accuracy=always(0.02), reward=always(0.03)),
        r"92 % of groups",
    ),
    "reward_saturated": (
        healthy_run(no_spread=always(0.9), accuracy=always(0.98), rewards__correct=always(0.98)),
        r"98 % of what the rewards can give",
    ),
    "truncated": (healthy_run(truncated=ramp(0.3, 0.8)), r"7\d % of answers .* 256 tokens"),
    "eos_never": (healthy_run(truncated=always(1.0)), r"all answers of all 60 steps"),
    "format_never_found": (healthy_run(rewards__format=always(0.0)), r"rewards/format was 0"),
    "entropy_collapse": (
        healthy_run(
            entropy=ramp(0.8, 0.005),
            accuracy=ramp(0.3, 0.5),
            reward=ramp(0.4, 0.6),
            no_spread=ramp(0.2, 0.75),
            eval__accuracy=ramp(0.3, 0.5),
        ),
        r"from 0\.7\d+ to 0\.0\d+ nats a token at an accuracy of 4\d %, and 7\d % of groups",
    ),
    "kl_blowup": (healthy_run(kl=lambda s: 0.02 if s < 50 else 2.0), r"KL is 2 nats"),
    "length_explosion": (
        healthy_run(tokens=ramp(80, 240), truncated=ramp(0.0, 0.45)),
        r"answers went from 8\d to 22\d tokens",
    ),
    "length_collapse": (
        healthy_run(tokens=ramp(100, 4, 40), accuracy=always(0.3), reward=always(0.4)),
        r"answers went from 9\d to 4 tokens",
    ),
    "one_reward_dominates": (
        healthy_run(spread__length=always(30.0), varied__length=always(1.0)),
        r"length makes 99 % .* correct 1\.3 %",
    ),
    "reward_hacking": (
        evals_that_stay(
            healthy_run(reward=ramp(0.3, 0.9), eval__reward=ramp(0.3, 0.9), accuracy=always(0.4)),
            0.4,
        ),
        r"step 20 to 60 the training reward went from 0\.4\d+ to 0\.8\d+, validation .* from 40 %",
    ),
    "accuracy_lost": (
        healthy_run(accuracy=ramp(0.3, 0.0), reward=ramp(0.5, 0.2), eval__accuracy=ramp(0.3, 0.0)),
        r"[0-2] % of training answers are right, 2\d % in the first 5 steps",
    ),
    "sampler_gap": (healthy_run(sampler_gap=always(0.08)), r"differs by 0\.080"),
    "learning_rate_high": (
        healthy_run(grad_norm=lambda s: MEMORY[s]),
        r"grad_norm was not finite at step 58",
    ),
    "learning_rate_low": (
        healthy_run(
            accuracy=lambda s: 0.3 + 0.01 * (s % 2),
            reward=lambda s: 0.4 + 0.01 * (s % 2),
            entropy=always(0.8),
            tokens=always(100.0),
            eval__accuracy=always(0.3),
        ),
        r"after 60 steps the reward is 0\.405",
    ),
    "environment_failed": (tool_run(episode__failed=always(0.15)), r"15 % of episodes"),
    "environment_slow": (
        tool_run(episode__waiting=always(0.7)),
        r"70 % of the time .* 6\.0 of 10\.0 seconds",
    ),
    "tools_never_called": (
        tool_run(episode__called=always(0.0), episode__calls=always(0.0), accuracy=always(0.5)),
        r"0\.0 % of episodes call a tool",
    ),
    "calls_never_end": (
        tool_run(episode__unanswered=ramp(0.2, 0.9), episode__turn_limit=ramp(0.2, 0.9)),
        r"8\d % of episodes were still calling .* 2\.\d turns and 1\.\d calls",
    ),
    "malformed_calls": (
        tool_run(episode__calls=always(2.0), episode__malformed=always(0.8)),
        r"40 % of calls are malformed: 0\.80 of 2\.00",
    ),
    "repeated_calls": (
        tool_run(episode__repeated=ramp(0.1, 0.6), episode__unanswered=ramp(0.2, 0.9)),
        r"5\d % of the calls",
    ),
    "turn_limit": (tool_run(episode__turn_limit=ramp(0.3, 0.8)), r"7\d % of episodes ended"),
    "slow_phase": (healthy_run(**SLOW_REWARD), r"reward takes 60 % of the time, 6\.0 of 10\.0"),
}


def found(rows: list[Row], config: Config | None = CONFIG) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(rows, config)}


def test_there_is_an_example_of_every_symptom() -> None:
    assert ILL.keys() == SYMPTOMS.keys()


@pytest.mark.parametrize("code", ILL)
def test_a_run_that_shows_a_symptom_is_diagnosed_with_it_alone(code: str) -> None:
    rows, evidence = ILL[code]
    findings = found(rows)
    assert list(findings) == [code]
    assert re.search(evidence, findings[code].evidence), findings[code].evidence
    assert 1 <= findings[code].step <= 60


@pytest.mark.parametrize("code", ILL)
def test_no_config_is_needed(code: str) -> None:
    assert code in found(ILL[code][0], None)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("steps", [4, 30, 60, 300])
def test_a_healthy_run_shows_nothing(seed: int, steps: int) -> None:
    assert found(healthy_run(steps, seed)) == {}
    assert found(tool_run(steps, seed)) == {}


@pytest.mark.parametrize("name", ["demo_metrics", "demo_with_kl_metrics"])
def test_the_demo_shows_nothing(name: str) -> None:
    """The metrics of real runs: the embedded model goes from 27 % to 96 % in 60 steps; and again
    with another seed, KL, and an evaluation every 5 steps."""
    rows = read_lines(pathlib.Path(__file__).parent / f"{name}.jsonl")
    assert len(rows) == 60 and rows[0]["reward"] < 0.6 < 0.95 < rows[-1]["reward"]
    assert found(rows, parse({})) == {}


def test_advice_names_settings_that_exist() -> None:
    """Whatever looks like a setting in advice is one; a value given with it is accepted."""
    for code, (rows, _) in ILL.items():
        advice = found(rows)[code].advice
        names = re.findall(r"\b((?:[a-z_]+\.)+[a-z_]+)(?:=([\w.-]*\w))?", advice)
        for name, value in names:
            assert value or hasattr_path(CONFIG, name), (code, name)
            if value and name != "algorithm.clip_high":
                parse({"environment": "my.py:Environment"}, [f"{name}={value}"])


def hasattr_path(config: Config, path: str) -> bool:
    node: Any = config
    for part in path.split("."):
        if not hasattr(node, part):
            return False
        node = getattr(node, part)
    return True


def test_values_in_advice_follow_the_runs_own_settings() -> None:
    gap = found(ILL["sampler_gap"][0], parse({}, ["rollout.top_p=0.9", "rollout.top_k=20"]))
    assert "rollout.top_p=1, rollout.top_k=0" in gap["sampler_gap"].advice
    rate = found(ILL["learning_rate_high"][0])["learning_rate_high"]
    assert "optimizer.lr=3.3e-07 (now 1e-06)" in rate.advice and rate.severity == "error"


def test_growth_that_pays_is_no_explosion_and_shortness_that_pays_no_collapse() -> None:
    assert found(healthy_run(tokens=ramp(80, 240))) == {}
    assert found(healthy_run(tokens=ramp(100, 20))) == {}


def test_a_sure_policy_that_is_right_has_not_collapsed() -> None:
    rows = healthy_run(entropy=ramp(0.8, 0.005), accuracy=ramp(0.3, 0.97), no_spread=ramp(0.2, 0.7))
    assert "entropy_collapse" not in found(rows)


def test_a_small_reward_that_hardly_varies_any_more_is_not_drowned() -> None:
    rows = healthy_run(spread__format=always(0.004), varied__format=always(0.04))
    assert found(rows) == {}


def test_a_metric_of_weight_zero_is_not_drowned() -> None:
    assert found(healthy_run(spread__metric=always(0.0), varied__metric=always(1.0))) == {}


def test_sampled_answers_that_catch_up_with_greedy_ones_are_no_hacking() -> None:
    """Seen in a real run: greedy held-out accuracy is at its height long before training reward."""
    rows = healthy_run(reward=ramp(0.5, 1.05), accuracy=ramp(0.35, 0.86), eval__reward=always(1.1))
    assert found(evals_that_stay(rows, 0.92)) == {}


def test_training_accuracy_that_leaves_held_out_accuracy_behind_is_learning_by_heart() -> None:
    rows = healthy_run(reward=ramp(0.4, 1.1), accuracy=ramp(0.4, 0.9), eval__reward=always(0.6))
    finding = found(evals_that_stay(rows, 0.4))["reward_hacking"]
    assert finding.title.startswith("Learned by heart") and "best/" in finding.advice


def test_accuracy_that_follows_the_reward_is_no_hacking() -> None:
    rows = healthy_run(reward=ramp(0.3, 0.9), eval__reward=ramp(0.3, 0.9), accuracy=always(0.4))
    rising = [row | {"eval/accuracy": 0.3 + row["step"] / 200} for row in rows]
    assert "reward_hacking" not in found(rising)
    falling = evals_that_stay(rows, 0.4)
    falling[-1] = falling[-1] | {"eval/accuracy": 0.2}
    assert found(falling)["reward_hacking"].severity == "error"


def test_a_clipped_majority_and_exploding_gradients_mean_too_high_a_rate() -> None:
    clipped = found(healthy_run(clip_high=always(0.35)))["learning_rate_high"]
    assert "35 % of tokens are clipped" in clipped.evidence and clipped.severity == "warning"

    def norm(step: int) -> float:
        return 0.4 if step < 54 else 40.0

    def reward(step: int) -> float:
        return 0.4 + step / 100 if step < 54 else 0.2

    exploding = found(healthy_run(grad_norm=norm, reward=reward))
    assert "gradient norm went from 0.4 to 40" in exploding["learning_rate_high"].evidence
    assert "learning_rate_high" not in found(healthy_run(grad_norm=norm))


def test_a_model_that_is_right_without_tools_needs_none() -> None:
    none = always(0.0)
    right = tool_run(episode__called=none, episode__calls=none, accuracy=always(0.97))
    assert "tools_never_called" not in found(right)
    games = tool_run(episode__tools=none, episode__called=none, episode__calls=none)
    assert found(games) == {}, "there is nothing to call"


def test_waiting_that_is_hidden_behind_learning_is_no_finding() -> None:
    hidden = tool_run(episode__waiting=always(0.9), seconds__generate=always(0.5))
    assert found(hidden) == {}


def test_most_episodes_failing_is_an_error() -> None:
    finding = found(tool_run(episode__failed=always(0.6)))["environment_failed"]
    assert finding.severity == "error"


def test_gravest_first() -> None:
    rows = healthy_run(sampler_gap=always(0.08), truncated=always(1.0), **SLOW_REWARD)
    assert [f.severity for f in diagnose(rows, CONFIG)] == ["error", "warning", "info"]


def test_answers_by_older_weights_are_no_disagreement_until_the_policy_outruns_them() -> None:
    old = always(1.0)
    assert "sampler_gap" not in found(healthy_run(sampler_gap=always(0.3), staleness=old))
    outrun = found(healthy_run(sampler_gap=always(0.9), staleness=old))["sampler_gap"]
    assert "0.900 on average" in outrun.evidence and "1.0 updates old" in outrun.evidence
    assert "timing=in_turn" in outrun.advice
