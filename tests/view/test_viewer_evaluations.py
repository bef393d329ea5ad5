"""What a run's evaluations, episodes and answers come to on a page."""

import json
import pathlib
from dataclasses import replace

import pytest

from groupwise.tracking.run import RunFolder
from groupwise.types import Completion, Episode, Group, to_json
from groupwise.view.cards import group_card, text_page, token_page
from groupwise.view.distributions import histogram, spread_out
from groupwise.view.stored_group import stored_group
from runs import small_config
from viewer_runs import api, client, group, make_run, row

BEFORE = [
    {"id": "a", "question": "1", "correct": 0.0, "reward": 0.2, "tokens": 5, "text": "wrong"},
    {"id": "b", "question": "2", "correct": 1.0, "reward": 1.2, "tokens": 7, "text": "right"},
    {"id": "c", "question": "3", "correct": 0.0, "reward": 0.0, "tokens": 9, "text": "no"},
]
AFTER = [
    {**BEFORE[0], "correct": 1.0, "reward": 1.2, "text": "right now", "rewards": {"x": 1.0}},
    {**BEFORE[1], "text": "still right"},
    {**BEFORE[2], "reward": 0.1},
]


def evaluated(folder: pathlib.Path, *, after: bool = True) -> pathlib.Path:
    make_run(folder)
    with RunFolder(folder, small_config()) as run:
        run.log_evaluation("before", BEFORE)
        if after:
            run.log_evaluation("after", AFTER)
    return folder


def test_the_evaluation_before_training_is_known_while_a_run_goes_on(
    tmp_path: pathlib.Path,
) -> None:
    run = evaluated(tmp_path / "run", after=False)
    summary = client(run).get(f"{api(run)}/summary").json()
    assert summary["before"]["accuracy"] == pytest.approx(1 / 3)
    assert summary["before"]["tokens"] == 7 and summary["before"]["problems"] == 3
    assert "after" not in summary
    line = client(run).get("/api/runs").json()["runs"][0]
    assert line["test"]["accuracy"] == {"before": pytest.approx(1 / 3)}


def test_held_out_problems_come_with_both_answers_those_that_changed_first(
    tmp_path: pathlib.Path,
) -> None:
    run = evaluated(tmp_path / "run")
    page = client(run).get(f"{api(run)}/held_out").json()
    assert [(one["id"], one["change"]) for one in page["problems"]] == [
        ("a", 1.0), ("c", pytest.approx(0.1)), ("b", 0.0),
    ]  # fmt: skip
    assert page["gained"] == 2 and page["lost"] == 0
    assert page["problems"][0]["before"]["text"] == "wrong"
    assert page["problems"][0]["after"]["text"] == "right now"
    found = client(run).get(f"{api(run)}/held_out", params={"q": "STILL"}).json()
    assert [one["id"] for one in found["problems"]] == ["b"]


def test_one_run_is_compared_with_its_start_and_two_with_each_other(
    tmp_path: pathlib.Path,
) -> None:
    first, second = evaluated(tmp_path / "one"), evaluated(tmp_path / "two")
    browser = client(tmp_path)
    ids = [api(run).rpartition("/")[2] for run in (first, second)]
    alone = browser.get("/api/compare", params={"run": ids[0]}).json()
    assert alone["names"] == ["before", "after"] and alone["problems"] == 3
    correct = next(row for row in alone["rows"] if row["metric"] == "correct")
    assert correct["values"][1]["value"] == pytest.approx(2 / 3)
    both = browser.get("/api/compare", params={"run": ids}).json()
    assert both["names"] == ["one", "two"]
    assert all(row["differences"][0]["value"] == 0 for row in both["rows"])
    missing = browser.get("/api/compare", params={"run": "nowhere"})
    assert missing.status_code == 404


def test_curves_can_be_drawn_over_seconds_and_tokens(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(row(3, seconds=4.0, tokens_per_second=100.0))
    series = client(run).get(f"{api(run)}/metrics").json()["series"]
    assert series["elapsed/seconds"]["mean"] == [2.0, 4.0, 8.0]
    assert series["elapsed/tokens"]["mean"][-1] == 400.0
    assert client(run).get("/api/runs").json()["runs"][0]["samples_per_step"] == 3 * 4


def test_a_report_can_be_read_and_can_do_nothing(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    address = f"/report/{api(run).rpartition('/')[2]}"
    browser = client(run)
    assert browser.get(address).status_code == 404
    (run / "report.html").write_text("<h1>Report</h1><script>alert(1)</script>")
    page = browser.get(address)
    assert page.status_code == 200 and "<h1>Report</h1>" in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'") and "script-src" not in policy
    assert client(run, signed_in=False).get(address).status_code == 403


def episode_group() -> Group:
    """Three completions: an episode in two segments, and one that failed."""
    call = {"id": "1", "function": {"name": "add", "arguments": {"a": 3}}}
    messages = (
        {"role": "assistant", "content": "First.", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "needle " + "y" * 5000},
        {"role": "assistant", "content": "7"},
    )
    episode = Episode(messages, (2, 1), (None, 0.5), {"won": 1.0}, calls=1, segments=2)
    first = Completion(
        (5, 6, 7), (-0.1, -0.2, 0.0), "eos", "7", sampled=(True, True, False), episode=episode
    )
    later = Completion((8,), (-0.3,), "eos", segment=1)
    failed = Completion((9,), (-0.3,), "environment", "", episode=Episode(error="it hung"))
    plain = group("p", ("a", "b", "c"), (1.0, 0.0, 0.0))
    return replace(
        plain, completions=(first, later, failed), rewards=(1.0, None, None),
        scores={"correct": (1.0, None, None)}, advantages=((0.5, 0.5, 0.5), 0.5, 0.0),
    )  # fmt: skip


def test_an_episode_is_one_answer_with_its_turns_calls_replies_and_rewards() -> None:
    stored = stored_group(json.dumps(to_json(episode_group())).encode(), 0)
    answers = group_card(stored)["answers"]
    assert [a["index"] for a in answers] == [0, 2]
    first, failed = answers
    assert first["segments"] == [0, 1] and first["tokens"] == 2 and first["given_tokens"] == 1
    episode = first["episode"]
    assert [m["turn"] for m in episode["messages"]] == [0, None, 1]
    assert episode["messages"][0]["calls"] == [["add", '{"a": 3}']]
    assert episode["messages"][1]["name"] == "add" and episode["messages"][1]["chars"] == 5007
    assert episode["turns"] == [2, 1] and episode["rewards"] == [None, 0.5]
    assert episode["scores"] == {"won": 1.0} and episode["calls"] == 1
    assert failed["episode"]["error"] == "it hung"
    page = token_page(stored, 0, 0, lambda ids: [str(id) for id in ids])
    assert page["sampled"] == [1, 1, 0]
    assert page["measures"]["logprob"] == [-0.1, -0.2, None]  # a reply has no log-prob of its own
    assert page["measures"]["advantage"] == [0.5, 0.5, None]
    assert text_page(stored, 0, 4000, 1)["text"] == "y" * 1007


def test_searches_look_into_replies_and_failed_episodes_can_be_listed(
    tmp_path: pathlib.Path,
) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[episode_group(), group("q")])
    browser = client(run)
    found = browser.get(f"{api(run)}/search", params={"q": "needle"}).json()["found"]
    assert [(one["group"], one["answer"]) for one in found] == [(0, 0)]
    failed = browser.get(f"{api(run)}/search", params={"filter": "failed"}).json()["found"]
    assert [(one["group"], one["answer"]) for one in failed] == [(0, 2)]


def test_histograms_cover_the_run_from_its_ends_inward(tmp_path: pathlib.Path) -> None:
    assert spread_out(range(1, 10), 5)[:3] == [1, 9, 5]
    assert sorted(spread_out(range(1, 1001), 64))[:1] == [1]
    assert len(set(spread_out(range(1, 1001), 64))) == 64
    bins = histogram([[0.0, 1.0], [1.0]])
    assert bins["counts"][0][0] == 1 and bins["counts"][0][-1] == 1 and sum(bins["counts"][1]) == 1
    run = make_run(tmp_path / "run", steps=3)
    reply = client(run).get(f"{api(run)}/histograms").json()
    assert reply["steps"] == [1, 2, 3] and reply["read"] == reply["wanted"] == 3
    assert sum(reply["histograms"]["reward"]["counts"][0]) == 4
    assert reply["histograms"]["pass rate"]["low"] == 0.5
