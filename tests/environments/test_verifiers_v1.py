"""A taskset of verifiers 0.4, unchanged, with its own harness and interception between."""

import difflib
import json
import pathlib

import pytest

from environments.scripted import END, ScriptedEngine, play
from environments.templates import tokenizer_of
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.groups import Episodes
from groupwise.environments.verifiers import verifiers_environment
from groupwise.tasks.verifiers import verifiers_task

HERE = pathlib.Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-verifiers-v1" / "bin" / "python"
TASKSET = str(HERE / "verifiers_examples" / "v1" / "reverse_text")
CAPITALS = str(HERE / "verifiers_own_v1" / "capitals")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not (PYTHON.parent.parent / ".ready").exists(),
        reason="no .venv-verifiers-v1: `make verifiers` makes it",
    ),
]


def test_a_taskset_runs_unchanged(tmp_path: pathlib.Path) -> None:
    rows = [{"prompt": f"hello number {n}"} for n in range(30)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    args = {
        "taskset": {"dataset_name": str(tmp_path)},
        "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
    }
    task = verifiers_task(TASKSET, args, str(PYTHON), test_size=2)
    problem = task.train[0]
    assert [m["role"] for m in problem.prompt if not isinstance(m, str)] == ["system", "user"]
    said = "rebmun olleh"
    engine = ScriptedEngine(lambda prompt: f"<reversed_text>{said}</reversed_text>")
    limits = EpisodeLimits(max_tokens=400, step_seconds=300.0, episode_seconds=600.0)
    factory = verifiers_environment(TASKSET, args, str(PYTHON))
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)
    for answer in play(engine, runner, 2, problem, 400).completions:
        episode = answer.episode
        assert episode is not None and not episode.error, episode
        wanted = difflib.SequenceMatcher(None, said, problem.columns["answer"]).ratio()
        assert episode.reward == pytest.approx(wanted) and 0 < wanted < 1
        assert len(episode.turns) == 1


def test_a_taskset_with_a_tool_runs_unchanged() -> None:
    """Its tool server is a process that verifiers starts for each episode."""
    args = {"agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}
    task = verifiers_task(CAPITALS, args, str(PYTHON), test_size=2)
    problem = next(p for p in task.train if p.columns["answer"] == "Lima")
    call = '<tool_call>{"name": "atlas_capital", "arguments": {"country": "Peru"}}</tool_call>'
    engine = ScriptedEngine(lambda prompt: "It is Lima." if "Lima" in prompt else call)
    limits = EpisodeLimits(max_tokens=400, step_seconds=170.0, episode_seconds=600.0)
    factory = verifiers_environment(CAPITALS, args, str(PYTHON))
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)
    (answer,) = play(engine, runner, 1, problem, 400).completions
    episode = answer.episode
    assert episode is not None and not episode.error, episode
    assert episode.reward == 1.0 and episode.calls == 1 and len(episode.turns) == 2
    assert [m["role"] for m in episode.messages] == ["assistant", "tool", "assistant"]
    assert episode.messages[1]["content"] == "Lima"
