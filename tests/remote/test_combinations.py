"""Every engine in every place with every timing, in one training process and in two.

Workers and servers are real processes. In turn and ahead the weights are those of one process that
samples for itself; in flight what is learned from depends on timing, so there it is the bookkeeping
that is compared. vLLM's part is in test_vllm_runs.py.
"""

import json
import pathlib
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from groupwise.recipe import parse
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.checkpoint import newest_checkpoint
from ranks import largest_gap, train_in_ranks
from real_vllm import COMBINATIONS as VLLM
from runs import timeless_metrics
from serving import TOKEN, serving_command

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "timing.md"
PLACES = {"here": "place=here", "processes": "place.count=1", "servers": "place.urls=[{url}]"}
TIMINGS = ("in_turn", "ahead", "in_flight")
Combination = tuple[str, str, str, int]
"""Engine, place, timing, training processes."""
OURS: list[Combination] = [
    (kind, place, timing, ranks)
    for ranks in (1, 2)
    for kind in ("native", "transformers")
    for place in PLACES
    for timing in TIMINGS
]
ALL = [(kind, place, timing) for kind in ("native", "transformers", "vllm")
       for place in PLACES for timing in TIMINGS]  # fmt: skip
RUN = ["steps=2", "optimizer.lr=1e-4", "rollout.max_draws=2", "rollout.overlong_buffer=12",
       "eval.every=1", "eval.k=1", "checkpoint.every=1"]  # fmt: skip


def settings(kind: str, place: str, timing: str, url: str) -> list[str]:
    return [f"engine.kind={kind}", PLACES[place].format(url=url), f"timing.kind={timing}"]


@pytest.mark.parametrize(("kind", "place", "timing"), ALL)
def test_every_combination_is_a_recipe(kind: str, place: str, timing: str) -> None:
    config = parse({}, settings(kind, place, timing, "http://127.0.0.1:8650"))
    assert (config.engine.kind, config.place.kind, config.timing.kind) == (kind, place, timing)


def test_the_table_of_the_page_is_what_tests_run() -> None:
    ran = [*OURS, *VLLM]
    assert len(set(ran)) == len(ran)
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", PAGE.read_text(), re.M)
    told = {
        (kind, place, timing): cell
        for kind, place, *cells in rows[1:]
        for timing, cell in zip(TIMINGS, cells, strict=True)
    }
    assert told == {
        three: ", ".join(str(ranks) for ranks in (1, 2) if (*three, ranks) in ran) or "untested"
        for three in ALL
    }


def named(combination: Combination) -> str:
    return "-".join(map(str, combination))


Runs = Callable[[Combination], pathlib.Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The folder of a run. All timings are trained when the first of them is asked for."""
    root = tmp_path_factory.mktemp("combinations")
    with serving_command("rollouts", "tiny") as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("GROUPWISE_TOKEN", TOKEN)

        @cache
        def trained(kind: str, place: str, ranks: int) -> None:
            combinations = [(kind, place, timing, ranks) for timing in TIMINGS]
            train_in_ranks(
                [(root / named(c), [*RUN, *settings(*c[:3], url)]) for c in combinations], ranks
            )

        def folder(combination: Combination) -> pathlib.Path:
            kind, place, _, ranks = combination
            trained(kind, place, ranks)
            return root / named(combination)

        yield folder


def answers(folder: pathlib.Path) -> list[list[dict]]:
    return [read_rollouts(path) for path in sorted((folder / "rollouts").glob("*.gz"))]


def drawn(group: dict) -> tuple[str, list[list[int]]]:
    return group["problem"]["id"], [answer["tokens"] for answer in group["completions"]]


@pytest.mark.cluster
@pytest.mark.parametrize("combination", [c for c in OURS if c[2] != "in_flight"], ids=named)
def test_engine_place_and_ranks_change_nothing(runs: Runs, combination: Combination) -> None:
    one, other = runs(("native", "here", combination[2], 1)), runs(combination)
    assert largest_gap(one, other) < 1e-5
    for ours, theirs in zip(timeless_metrics(one), timeless_metrics(other), strict=True):
        assert "eval/accuracy" in ours and ours.keys() == theirs.keys()
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)
    for ours, theirs in zip(answers(one), answers(other), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a["problem"] == b["problem"]
            assert [c["tokens"] for c in a["completions"]] == [
                c["tokens"] for c in b["completions"]
            ]


@pytest.mark.cluster
@pytest.mark.parametrize("combination", [c for c in OURS if c[2] == "in_flight"], ids=named)
def test_in_flight_each_problem_is_learned_from_once(runs: Runs, combination: Combination) -> None:
    folder = runs(combination)
    lines = read_metrics(folder)
    assert [line["step"] for line in lines] == [1, 2]
    assert all("eval/accuracy" in line and 0 <= line["staleness_max"] <= 4 for line in lines)
    learned = [group["problem"]["id"] for groups in answers(folder) for group in groups]
    assert len(set(learned)) == len(learned) == 6
    newest = newest_checkpoint(folder / "checkpoints")
    assert newest is not None
    state = json.loads((newest / "state.json").read_text())
    waiting = [*state["open"], *(place for place, _ in state["complete"])]
    drawn = int(sum(line["problems_drawn"] for line in lines))
    assert len(set(waiting)) == len(waiting) == state["cursor"] - drawn
