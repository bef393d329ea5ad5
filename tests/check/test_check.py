"""A recipe tried before it is trained: what the trial foretells, and the fix for what is wrong."""

import pathlib
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from groupwise.check.trial import Trial, foreign_turn_end, make_trial, small_parts
from groupwise.check.verdicts import Verdict, duration, eval_seconds, step_seconds, verdicts
from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.load import load_parts
from groupwise.recipe import parse
from groupwise.types import Completion, Group, Problem
from runs import small_config


def trial(config: Config | None = None, **changes: Any) -> Trial:
    """A trial where all is well: 4 problems x 4 answers, half of them right."""
    scores = (1.0, 0.0, 1.0, 0.0)
    completions = tuple(Completion((5, 6, 2), (-0.1,) * 3, "eos", "a") for _ in scores)
    groups = [
        Group(Problem(str(i), "?"), (1,) * (10 + i), completions, {"correct": scores}, scores)
        for i in range(4)
    ]
    fine = Trial(
        config=config or parse({"rewards": ["correct"], "steps": 100}),
        groups=groups,
        right=[bool(s) for _ in groups for s in scores],
        formatted=[True] * 16,
        extracted=[True] * 16,
        seconds={"generate": 1.0, "reward": 0.1, "update": 2.0},
        sampler_gap=1e-6,
        resident_gb=2.0,
        peak_gb=3.0,
        available_gb=16.0,
        on_gpu=False,
        templated=True,
        turn_end=None,
    )
    return replace(fine, **changes)


def warned(found: Trial) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in verdicts(found) if verdict.fix is not None}


def with_stop(stop: str) -> list[Group]:
    return [
        replace(group, completions=tuple(replace(c, stop=stop) for c in group.completions))
        for group in trial().groups
    ]


def with_rewards(value: float) -> list[Group]:
    same = (value,) * 4
    return [replace(g, rewards=same, scores={"correct": same}) for g in trial().groups]


def test_a_sound_recipe_has_no_warnings() -> None:
    assert warned(trial()) == {}
    lines = {verdict.name: verdict.text for verdict in verdicts(trial())}
    assert "10-13 tokens" in lines["prompts"] and "50 % are right" in lines["answers"]
    assert "100 % of groups: about 16 of 16" in lines["spread"]


@pytest.mark.parametrize(
    ("changes", "name", "fix"),
    [
        ({"templated": False}, "prompts", "instruct version"),
        ({"turn_end": "<|im_end|>"}, "ends", "rollout.stop=['<|im_end|>']"),
        ({"groups": with_stop("length")}, "ends", "no answer ends"),
        ({"extracted": [False] * 12 + [True] * 4}, "answers", "cannot be read"),
        ({"groups": with_rewards(0.0), "right": [False] * 16}, "spread", "batch.group_size=16"),
        ({"groups": with_rewards(0.0)}, "reward correct", "every answer gets 0"),
        ({"groups": with_rewards(1.0), "right": [True] * 16}, "spread", "harder problems"),
        ({"sampler_gap": 0.1}, "numerics", "algorithm.mismatch=token"),
        ({"peak_gb": 15.5}, "memory", "batch.tokens_per_microbatch=8192"),
        ({"on_gpu": True, "peak_gb": 8.0}, "memory", "batch.tokens_per_microbatch=8192"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(changes: dict, name: str, fix: str) -> None:
    found = warned(trial(**changes))
    assert fix in (found[name].fix or "")


def test_some_cut_off_answers_ask_for_more_room() -> None:
    groups = with_stop("length")[:1] + list(trial().groups[1:])
    (only,) = warned(trial(groups=groups)).values()
    assert only.name == "ends" and only.fix == "rollout.max_completion_tokens=96"
    assert "25 % are cut off at 48 tokens" in only.text


def test_times_are_scaled_to_the_whole_batch_and_run() -> None:
    config = parse({"steps": 100, "eval": {"every": 50, "problems": 64, "k": 4}})
    found = trial(config)
    assert step_seconds(found) == pytest.approx(3.1 * 16 / 4)
    assert eval_seconds(found) == pytest.approx(1.0 * 64 * 5 / 16)
    text = duration(found).text  # 100 x 12.4 s + 4 x 20 s = 22 min
    assert "12 s a step" in text and "4 evaluations of 20 s" in text and "take 22 min" in text
    often = parse({"steps": 100, "eval": {"every": 1, "problems": 640}})
    assert "eval.every" in (duration(trial(often)).fix or "")


def test_a_trial_is_the_first_step_in_small(tmp_path: pathlib.Path) -> None:
    config = small_config(
        "batch.prompts=20", "algorithm.kl_weight=0.01", "batch.epochs=2",
        "rollout.max_completion_tokens=48",
    )  # fmt: skip
    with load_parts(config) as parts:
        found = make_trial(*small_parts(parts), config)
    assert len(found.groups) == 8 and len(found.formatted) == 32
    assert found.config.batch.prompts == 20 and found.turn_end is None and found.templated
    assert found.seconds.keys() >= {"generate", "reward", "logprobs", "update"}
    assert found.right is not None and 0 < sum(found.right) < 32
    assert found.sampler_gap is not None and found.sampler_gap < 1e-3
    weights = 1_060_000 * 4 / 1e9  # bytes of the embedded model, and of its reference
    assert found.resident_gb == pytest.approx(weights * (1 + 1 + 3), rel=0.05)


def test_a_template_whose_end_of_turn_ends_nothing_is_noticed() -> None:
    with load_parts(small_config()) as parts:
        assert foreign_turn_end(parts.policy) is None
        other = replace(parts.policy, eos_ids=(0,))
        assert foreign_turn_end(other) == "<|end|>"
        plain = replace(parts.policy, tokenizer=SimpleNamespace(chat_template=None))
        assert foreign_turn_end(plain) is None


def test_check_tries_a_recipe_and_dry_only_reads_it() -> None:
    settings = ["device=cpu", "batch.prompts=2", "batch.group_size=2", "task.train_size=64"]
    result = CliRunner().invoke(app, ["check", *settings], catch_exceptions=False)
    assert result.exit_code == 0 and "a trial: 2 problems, 4 answers" in result.output
    for name in ("prompts", "ends", "answers", "spread", "memory", "time"):
        assert f"{name}:" in result.output
    dry = CliRunner().invoke(app, ["check", "--dry", *settings], catch_exceptions=False)
    assert "trial" not in dry.output and "group_size: 2" in dry.output


def test_the_chat_template_is_proven_on_probe_conversations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Tools and thinking; a template that drops what was thought is named with its first token."""
    from environments.templates import FOLDER, TINY

    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_text((FOLDER / "qwen3.jinja").read_text())
    monkeypatch.setattr("groupwise.tracking.console.console._width", 300)
    small = ["task.train_size=8", "task.test_size=2", "rollout.max_prompt_tokens=512", "--dry"]
    words = ["check", "calculator", "--model", str(folder), *small]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "tools: up to 3 turns, continued by the chat template; tools: calculate" in result.output
    lines = [line for line in result.output.splitlines() if line.startswith("template ")]
    assert [line.partition(": ")[0].removeprefix("template").strip() for line in lines] == [
        "user reply", "user reply, thinking", "tool reply", "tool reply, thinking",
    ]  # fmt: skip
    kept = [line.endswith("what stands before stays, token by token") for line in lines]
    assert kept == [True, False, True, True]
    assert re.search(r"at token \d+ the template has .+ where .+ was before; episodes", lines[1])
