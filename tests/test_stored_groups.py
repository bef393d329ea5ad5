"""Groups as lines of JSON: what is stored is what was there."""

import json

import pytest

from groupwise.types import Completion, Episode, Group, Problem, group_from_json, json_line

EPISODE = Episode(messages=({"role": "tool", "content": "4"},), turns=(2, 1), rewards=(None, 1.0))


@pytest.mark.parametrize("text", ["plain", "half a character \ud800", "\u2028"])
@pytest.mark.parametrize("big", [7, 2**80])
def test_a_group_comes_back_equal(text: str, big: int) -> None:
    answers = (
        Completion((3, 9), (-0.1, -1e-30), "eos", text=text),
        Completion((3,), (-2.5,), "environment", sampled=(True,), episode=EPISODE),
    )
    problem = Problem("a", ({"role": "user", "content": text},), {"answer": big})
    group = Group(problem, (1, 2), answers, {"right": (1.0, None)}, (1.0, None), (0.5, (0.1,)))
    line = json_line(group)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert group_from_json(json.loads(line)) == group
