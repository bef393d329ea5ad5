"""Search, filters, and one problem followed over a run."""

import dataclasses
import pathlib
from typing import Any

import pytest

from groupwise.tracking.run import INDEX, RunFolder
from groupwise.types import Group
from groupwise.view import scan
from runs import small_config
from viewer_runs import answer, api, client, group, make_run


def with_answers(base: Group, **changes: object) -> Group:
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Step k has problem p with the best reward k, and some groups that filters look for."""
    folder = tmp_path_factory.mktemp("search") / "run"
    hacked = with_answers(
        group("hacked", ("short and wrong", "long and right"), (0.0, 1.0)), advantages=(0.9, -0.9)
    )
    cut = with_answers(
        group("cut"), completions=(answer("it goes on", stop="length"), answer("done"))
    )
    with RunFolder(folder, small_config()) as made:
        for step in range(1, 5):
            rising = with_answers(group("p", (f"NEEDLE {step}", "Ünï")), rewards=(float(step), 0.0))
            flat = group("flat", correct=(1.0, 1.0))
            made.log_rollouts(step, [rising, flat, hacked, cut])
            made.log_metrics({"step": step, "loss": 0.0, "reward": 0.0, "seconds": 1.0})
    return folder


def hits(run: pathlib.Path, **params: str) -> list[tuple[str, list[int]]]:
    page = client(run).get(f"{api(run)}/steps/2/groups", params=params).json()
    return [(found["problem"], found["hits"]) for found in page["groups"]]


def test_filters_find_what_they_say(run: pathlib.Path) -> None:
    assert hits(run, filter="wrong_but_rewarded") == [("hacked", [0])]
    assert hits(run, filter="truncated") == [("cut", [0])]
    assert hits(run, filter="no_spread") == [("flat", [0, 1])]
    assert hits(run, filter="new_best") == [("p", [0])]
    assert hits(run, filter="truncated", q="nothing like it") == []
    response = client(run).get(f"{api(run)}/steps/2/groups", params={"filter": "odd"})
    assert response.status_code == 400 and "truncated" in response.json()["error"]


def test_search_knows_no_case_and_reads_prompts_answers_and_names(run: pathlib.Path) -> None:
    assert hits(run, q="needle") == [("p", [0])]
    assert hits(run, q="ÜNÏ") == [("p", [1])]
    assert hits(run, q="FLAT") == [("flat", [0, 1])]
    assert len(hits(run, q="what is 3+4")) == 4


def test_a_search_over_all_steps_goes_on_where_it_stopped(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PAGE", 3)
    browser, found, place = client(run), [], [0, 0]
    calls = 0
    page: dict[str, Any] = {}
    while place is not None:
        params = {"q": "e", "step": place[0], "group": place[1]}
        page = browser.get(f"{api(run)}/search", params=params).json()
        found += [(one["step"], one["group"], one["answer"]) for one in page["found"]]
        place = page["next"]
        calls += 1
    assert calls > 4 and page["searched"] == page["steps"] == 4
    assert len(found) == len(set(found)) and found == sorted(found)
    assert {step for step, _, _ in found} == {1, 2, 3, 4}


def test_a_slice_of_time_ends_and_says_how_far_it_got(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SLICE_SECONDS", -1.0)
    page = client(run).get(f"{api(run)}/search", params={"q": "absent"}).json()
    assert page["next"] == [1, 0] and page["searched"] == 0 and page["steps"] == 4


def test_one_problem_is_followed_over_training(run: pathlib.Path) -> None:
    seen = client(run).get(f"{api(run)}/problem", params={"id": '"p"'}).json()["seen"]
    assert [(one["step"], one["group"], one["high"]) for one in seen] == [
        (1, 0, 1.0), (2, 0, 2.0), (3, 0, 3.0), (4, 0, 4.0),
    ]  # fmt: skip
    table = client(run).get(f"{api(run)}/problems").json()
    assert table["total"] == 4 and table["problems"][0]["problem"] == "p"
    assert table["problems"][0]["change"] == 1.5 and table["problems"][0]["seen"] == 4


def test_a_run_without_an_index_is_read_from_its_answers(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    browser = client(run)
    with_index = browser.get(f"{api(run)}/problems").json()
    (run / INDEX).unlink()
    assert client(run).get(f"{api(run)}/problems").json() == with_index
    assert with_index["indexed"] == with_index["steps"] == 3


def test_an_odd_index_is_survived(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    with (run / INDEX).open("a") as file:
        file.write('{"step": 3, "groups": [7, ["q"], ["p", "x", null, 1]]}\n[]\n{"step": 3}\n')
    seen = client(run).get(f"{api(run)}/problem", params={"id": '"p"'}).json()["seen"]
    assert [one["mean"] for one in seen] == [0.5, 0.5, None]
