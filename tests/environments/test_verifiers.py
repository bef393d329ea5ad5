"""Environments of verifiers, unchanged and as verifiers runs them. `make verifiers` first."""

import asyncio
import json
import logging
import pathlib
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from environments.scripted import END, ScriptedEngine, play
from environments.templates import tokenizer_of
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.groups import Episodes
from groupwise.environments.verifiers import verifiers_environment
from groupwise.errors import ConfigError
from groupwise.load import load_parts
from groupwise.recipe import parse
from groupwise.rollout.engine import run_sync
from groupwise.tasks import json_lines_process
from groupwise.tasks.verifiers import verifiers_task
from groupwise.training.collect import collect_step
from groupwise.types import Completion, Problem

HERE = pathlib.Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-verifiers" / "bin" / "python"
OWN = f"{HERE / 'verifiers_own.py'}:load_environment"
LIMITS = EpisodeLimits(max_tokens=2000, max_turns=6, step_seconds=30.0, episode_seconds=90.0)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not (PYTHON.parent.parent / ".ready").exists(),
        reason="no .venv-verifiers: `make verifiers` makes it",
    ),
]


def example(name: str) -> str:
    return f"{HERE / 'verifiers_examples' / name}.py:load_environment"


def names_in(folder: pathlib.Path) -> str:
    """A dataset on disk in the form of the hub's that alphabet-sort reads."""
    letters = "EBDACGF"
    rows = [{"names": [f"{a}{a.lower()} {b}{b.lower()}" for b in letters]} for a in letters]
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder)


def texts_in(folder: pathlib.Path) -> str:
    folder.mkdir()
    rows = [{"prompt": f"hello number {n}"} for n in range(30)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def turns_of(texts: list[str]) -> Callable[[str], str]:
    return lambda prompt: texts[min(prompt.count("<|assistant|>"), len(texts)) - 1]


def played(
    env: str,
    args: dict[str, Any],
    texts: list[str],
    problem: Problem | None = None,
    limits: EpisodeLimits = LIMITS,
    count: int = 1,
) -> tuple[Completion, ...]:
    problem = problem or verifiers_task(env, args, str(PYTHON), test_size=2).train[0]
    factory = verifiers_environment(env, args, str(PYTHON))
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)
    engine = ScriptedEngine(turns_of(texts))
    return play(engine, runner, count, problem, limits.max_tokens).completions


def row(index: int, does: str = "") -> Problem:
    """A problem of one's own for an environment of theirs."""
    columns = {"answer": str(index + 1), "info": {"does": does}}
    return Problem(f"p{index}", ({"role": "user", "content": f"What is {index}+1?"},), columns)


def alone(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What verifiers makes of the same turns by itself."""
    done = subprocess.run(
        [PYTHON, HERE / "verifiers_alone.py"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_examples_run_as_verifiers_runs_them(tmp_path: pathlib.Path) -> None:
    names, texts = names_in(tmp_path / "names"), texts_in(tmp_path / "texts")
    sort_args = {"dataset_name": names, "min_turns": 2, "max_names_per_turn": 2}
    wanted: list[tuple[str, dict[str, Any], list[str]]] = [
        (
            example("alphabet_sort"),
            sort_args,
            [
                "<alphabetical_sorted>\nEeEe\nEeBb\n</alphabetical_sorted>",
                "<combined_alphabetical_sorted>\nEeEe // new\n</combined_alphabetical_sorted>",
                "<combined_alphabetical_sorted>\nEeBb\nEeEe\n</combined_alphabetical_sorted>",
            ],
        ),
        (
            example("reverse_text"),
            {"dataset_name": texts},
            ["<reversed_text>0 rebmun</reversed_text>"],
        ),
        (example("tool_test"), {"num_train_examples": 20}, [call("tool_A", x=1)]),
        (OWN, {"kind": "single"}, ["It may be 2 or 1."]),
        (OWN, {"kind": "tries"}, ["5", "no idea", "It is 1 or 2 or 3 or 4."]),
        (OWN, {"kind": "stateful"}, [call("count_up", by=3), call("count_up", by=4), "Done."]),
        (OWN, {"kind": "group"}, ["It is 2."]),
    ]
    ours, cases = [], []
    for env, args, turns in wanted:
        problem = verifiers_task(env, args, str(PYTHON), test_size=2).train[0]
        (answer,) = played(env, args, turns, problem)
        episode = answer.episode
        assert episode is not None and not episode.error, (env, episode)
        ours.append(episode)
        said = [m for m in episode.messages if m["role"] == "assistant"]
        replayed = [
            {
                "content": m["content"],
                "calls": [{"id": c["id"], **c["function"]} for c in m.get("tool_calls", ())],
            }
            for m in said
        ]
        where = problem.columns["verifiers"]
        cases.append({"env": env, "args": args, "turns": replayed, **where})
    for episode, case, truth in zip(ours, cases, alone(cases), strict=True):
        assert episode.reward == pytest.approx(truth["reward"], abs=1e-9), case
        assert [[m["role"], m["content"]] for m in episode.messages] == truth["messages"], case
    assert len(ours[0].turns) >= 2, "several turns"
    assert 0 < ours[0].reward < 1 and ours[2].calls == 1
    assert ours[5].reward == 7.0, "tools that keep state"


def test_datasets_are_the_problems(tmp_path: pathlib.Path) -> None:
    task = verifiers_task(
        example("tool_test"), {"num_train_examples": 20}, str(PYTHON), train_size=12, test_size=5
    )
    assert [len(s) for s in (task.train, task.validation, task.test)] == [12, 5, 5]
    assert task.train[0].id == "tool_test/train/0" and task.test[0].id == "tool_test/eval/1"
    assert task.train[0].columns["info"]["tool_names"]
    assert task.correct is None
    own = verifiers_task(OWN, {"kind": "single"}, str(PYTHON), test_size=2)
    assert own.train[0].prompt[0] == {"role": "system", "content": "Answer."}
    splits = [{p.id for p in split} for split in (own.train, own.validation, own.test)]
    assert all(splits) and not splits[0] & (splits[1] | splits[2]) and not splits[1] & splits[2]


def test_a_run_trains_with_an_environment_of_verifiers() -> None:
    config = parse(
        {},
        [
            f"environment.env={OWN}",
            "environment.args={kind: tries}",
            f"environment.python={PYTHON}",
            "environment.max_turns=2",
            "task.test_size=2",
            *("batch.prompts=2", "batch.group_size=2", "rollout.max_completion_tokens=20"),
            "rollout.max_prompt_tokens=512",
        ],
    )
    with load_parts(config) as parts:
        groups = run_sync(collect_step(parts, 0, 0)).groups
        assert parts.task.name == "verifiers_own"
    assert [len(group.scores["verifiers_own"]) for group in groups] == [2, 2]
    prompt = parts.policy.tokenizer.decode(list(groups[0].prompt_tokens))
    assert "Think." in prompt, "what setup_state made of the prompt"
    for group in groups:
        for score, answer in zip(group.scores["verifiers_own"], group.completions, strict=True):
            assert answer.episode is not None and score == answer.episode.reward


def test_limits_end_an_episode_that_is_scored_all_the_same() -> None:
    few = EpisodeLimits(max_tokens=2000, max_turns=2, step_seconds=30.0, episode_seconds=60.0)
    (answer,) = played(OWN, {"kind": "tries"}, ["one two", "three"], row(3), few)
    assert answer.stop == "turns" and answer.episode is not None
    assert answer.episode.reward == 0.5 * 3
    short = EpisodeLimits(max_tokens=8, step_seconds=30.0, episode_seconds=60.0)
    (cut,) = played(OWN, {"kind": "tries"}, ["4 " * 50], row(3), short)
    assert cut.stop == "length" and cut.episode is not None
    said = cut.episode.messages[-1]["content"]
    assert cut.episode.reward == 0.5 * len(said.split()) == 2.0, "rubrics see what was cut off"


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raises", "ValueError: out of order"),
        ("errs", "no tools today"),
        ("forgets", r"environment: {kind: agent}"),
        ("exits", "exit code 7"),
    ],
)
def test_what_fails_costs_its_episode(does: str, why: str) -> None:
    (answer,) = played(OWN, {"kind": "tries"}, ["no", "no"], row(3, does))
    assert answer.episode is not None and why in answer.episode.error
    assert answer.episode.reward is None and answer.stop == "environment"
    (after,) = played(OWN, {"kind": "tries"}, ["It is 4."], row(3))
    assert after.episode is not None and not after.episode.error


def test_one_that_blocks_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines_process, "PING_SECONDS", 0.5)
    limits = EpisodeLimits(max_tokens=200, step_seconds=2.0, episode_seconds=60.0)
    (answer,) = played(OWN, {"kind": "tries"}, ["no"], row(3, "blocks"), limits)
    assert answer.episode is not None and "did not return within 2 s" in answer.episode.error
    (after,) = played(OWN, {"kind": "tries"}, ["It is 4."], row(3))
    assert after.episode is not None and after.episode.messages[-1]["content"] == "Right."


def test_slow_tools_do_not_wait_for_each_other() -> None:
    texts = [call("slow", seconds=1.0), "Done."]
    played(OWN, {"kind": "slow"}, ["Done."], row(1))  # loaded
    began = time.monotonic()
    answers = played(OWN, {"kind": "slow"}, texts, row(1), count=6)
    assert time.monotonic() - began < 4
    assert all(a.episode and a.episode.messages[-2]["content"] == "awake" for a in answers)


def test_reward_functions_that_raise_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "groupwise"):
        (answer,) = played(OWN, {"kind": "complains"}, ["4"], row(3))
    assert answer.episode is not None and answer.episode.reward == 1.0
    assert "Error calling reward function raises: 'no such word'" in caplog.text


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="scores the rollouts of a group together"):
        verifiers_environment(OWN, {"kind": "together"}, str(PYTHON))
    with pytest.raises(ConfigError, match="Could not import 'no-such-env'"):
        verifiers_environment("no-such-env", {}, str(PYTHON))


def test_an_episode_that_is_closed_early_leaves_nothing() -> None:
    factory = verifiers_environment(OWN, {"kind": "tries"}, str(PYTHON))

    async def abandoned() -> None:
        environment = factory.make(row(3))
        await environment.reset(row(3), 0)
        await environment.close()
        await environment.close()

    asyncio.run(abandoned())
