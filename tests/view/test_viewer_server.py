"""The viewer's answers: pages of runs, while they grow, and when they are damaged or hostile."""

import gzip
import json
import pathlib

import pytest

from groupwise.errors import RunFolderError
from groupwise.tracking.run import RunFolder
from groupwise.view.catalog import Catalog
from groupwise.view.scan import PAGE
from runs import small_config
from viewer_runs import answer, api, append_metrics, client, group, make_run, row


def test_runs_are_found_under_a_folder_and_named_by_it(tmp_path: pathlib.Path) -> None:
    make_run(tmp_path / "a", seed=0)
    make_run(tmp_path / "deep" / "b", seed=1)
    make_run(tmp_path / "other", seed=1, batch__prompts=5)
    (tmp_path / "no run").mkdir()
    runs = client(tmp_path).get("/api/runs").json()["runs"]
    assert [run["name"] for run in runs] == ["a", "deep/b", "other"]
    assert runs[0]["family"] == runs[1]["family"] != runs[2]["family"]
    assert [run["seed"] for run in runs] == [0, 1, 1]
    assert runs[0]["last_step"] == 3 and runs[0]["status"] == "unfinished"


def test_a_folder_without_runs_says_what_to_do(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunFolderError, match="groupwise train"):
        Catalog([tmp_path])
    with pytest.raises(RunFolderError, match="no folder"):
        Catalog([tmp_path / "nowhere"])


def test_a_run_that_starts_later_appears(tmp_path: pathlib.Path) -> None:
    make_run(tmp_path / "a")
    browser = client(tmp_path)
    assert len(browser.get("/api/runs").json()["runs"]) == 1
    make_run(tmp_path / "b")
    assert len(browser.get("/api/runs").json()["runs"]) == 2
    assert browser.get(f"{api(tmp_path / 'b')}/metrics").status_code == 200


def test_metrics_follow_the_file_and_leave_a_half_written_line(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    browser = client(run)

    def reward() -> list[float]:
        return browser.get(f"{api(run)}/metrics").json()["series"]["reward"]["mean"]

    assert reward() == [0.1, 0.2, 0.3]
    append_metrics(run, '{"step": 4, "rew')
    assert reward() == [0.1, 0.2, 0.3]
    assert browser.get("/api/runs").json()["runs"][0]["last_step"] == 3
    append_metrics(run, 'ard": 0.9}\n')
    assert reward() == [0.1, 0.2, 0.3, 0.9]
    assert browser.get("/api/runs").json()["runs"][0]["last_step"] == 4


def test_a_run_that_went_back_is_read_anew(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=5)
    browser = client(run)
    before = browser.get(f"{api(run)}/metrics").json()
    with RunFolder(run, small_config()) as folder:
        folder.rewind(2)
        folder.log_metrics({"step": 3, "loss": 0.0, "reward": 7.0, "seconds": 1.0})
    after = browser.get(f"{api(run)}/metrics").json()
    assert after["series"]["reward"]["mean"] == [0.1, 0.2, 7.0]
    assert after["generation"] != before["generation"]
    assert browser.get("/api/runs").json()["runs"][0]["generation"] == after["generation"]
    assert browser.get(f"{api(run)}/steps").json()["steps"] == [1, 2]
    seen = browser.get(f"{api(run)}/problem", params={"id": '"p"'}).json()["seen"]
    assert [one["step"] for one in seen] == [1, 2]


def test_damaged_and_hostile_metrics_are_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    odd = [
        "no json",
        "[1]",
        '{"reward": 1}',
        '{"step": "4"}',
        '{"step": 1, "reward": 5}',
        "[" * 9999,
    ]
    append_metrics(run, "\n".join(odd) + "\n")
    append_metrics(
        run, '{"step": 2, "reward": NaN, "loss": 1e999, "note": "text", "big": 1%s}\n' % ("0" * 400)
    )
    append_metrics(run, row(3, reward=0.3))
    window = client(run).get(f"{api(run)}/metrics").json()
    assert window["series"]["reward"]["mean"] == [0.1, None, 0.3]
    assert window["series"]["loss"]["mean"] == [0.5, None]
    assert window["series"]["big"]["mean"] == [None] and "note" not in window["series"]
    assert window["broken_lines"] == len(odd) and window["last_step"] == 3


def test_a_stored_step_comes_in_pages(tmp_path: pathlib.Path) -> None:
    groups = [group(f"p{i}") for i in range(PAGE + 5)]
    run = make_run(tmp_path / "run", steps=1, groups=groups)
    browser = client(run)
    first = browser.get(f"{api(run)}/steps/1/groups").json()
    assert [g["problem"] for g in first["groups"]] == [f"p{i}" for i in range(PAGE)]
    assert first["next"] == PAGE
    rest = browser.get(f"{api(run)}/steps/1/groups", params={"first": PAGE}).json()
    assert [g["index"] for g in rest["groups"]] == list(range(PAGE, PAGE + 5))
    assert rest["next"] is None
    best = first["groups"][0]["answers"][0]
    assert best["advantage"] == 0.5 and best["right"] is True and best["scores"] == {"correct": 1.0}


def test_a_long_answer_is_cut_and_paged(tmp_path: pathlib.Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(130_000))
    run = make_run(tmp_path / "run", steps=1, groups=[group("p", texts=(text, "b"))])
    browser = client(run)
    card = browser.get(f"{api(run)}/steps/1/groups").json()["groups"][0]["answers"][0]
    assert len(card["text"]) == 4000 and card["chars"] == 130_000
    whole = card["text"]
    while len(whole) < card["chars"]:
        params = {"answer": 0, "first": len(whole)}
        page = browser.get(f"{api(run)}/steps/1/groups/0/text", params=params).json()["text"]
        assert 0 < len(page) <= 50_000
        whole += page
    assert whole == text


HOSTILE = "<script>alert(1)</script>\x1b[31m \u202egnirts\u202c \ud800 \x00 </bdi>&amp;"


def test_hostile_text_arrives_as_it_was_written(tmp_path: pathlib.Path) -> None:
    run = make_run(
        tmp_path / "run", steps=1, groups=[group(HOSTILE, (HOSTILE, "b"), (1, 0), HOSTILE)]
    )
    response = client(run).get(f"{api(run)}/steps/1/groups")
    assert response.headers["content-type"].startswith("application/json")
    assert response.content.isascii()
    card = json.loads(response.content)["groups"][0]
    assert card["answers"][0]["text"] == card["prompt"] == card["problem"] == HOSTILE
    followed = client(run).get(f"{api(run)}/problem", params={"id": json.dumps(HOSTILE)})
    assert len(followed.json()["seen"]) == 1
    assert client(run).get(f"{api(run)}/problem", params={"id": "p"}).status_code == 400


def test_tokens_have_texts_and_numbers(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=1)  # its model is the embedded one
    found = client(run).get(f"{api(run)}/steps/1/groups/0/tokens").json()["answers"]
    assert [page["answer"] for page in found] == [0, 1]
    assert len(found[0]["texts"]) == 3 and found[0]["ids"] == [5, 6, 7]
    assert found[0]["measures"] == {"logprob": pytest.approx([-0.1, -0.2, -0.3])}


def test_without_a_tokenizer_it_says_so(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=1, model="some/model")
    response = client(run).get(f"{api(run)}/steps/1/groups/0/tokens")
    assert response.status_code == 404 and "tokenizer" in response.json()["error"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "not groups", "gone", "linked"])
def test_damaged_rollouts_are_reported_not_raised(tmp_path: pathlib.Path, damage: str) -> None:
    run = make_run(tmp_path / "run", steps=2)
    path = run / "rollouts" / "step-000002.jsonl.gz"
    content = path.read_bytes()
    odd = (
        b'[1]\n{"problem": 7, "completions": [3, {"tokens": [""], "logprobs": {}}], "scores": []}\n'
    )
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "garbage":
        path.write_bytes(b"no gzip")
    elif damage == "not groups":
        path.write_bytes(gzip.compress(odd))
    elif damage == "linked":
        outside = tmp_path / "secret.jsonl.gz"
        outside.write_bytes(gzip.compress(b'{"problem": {"id": "secret"}, "completions": []}\n'))
        path.symlink_to(outside)
    browser = client(run)
    response = browser.get(f"{api(run)}/steps/2/groups")
    if damage == "not groups":
        broken, odd_group = response.json()["groups"]
        assert broken["unreadable"] and len(odd_group["answers"]) == 2
    else:
        assert response.status_code == 404 and "step 2" in response.json()["error"]
    assert "secret" not in response.text
    assert browser.get(f"{api(run)}/steps/1/groups").status_code == 200
    assert browser.get(f"{api(run)}/search", params={"q": "right"}).status_code == 200


def test_no_path_outside_the_given_runs(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "shown")
    make_run(tmp_path / "private")
    browser = client(run)
    assert browser.get(f"{api(tmp_path / 'private')}/metrics").status_code == 404
    for path in (
        "/api/runs/..%2Fprivate/metrics", "/api/runs/%2Fetc/metrics", "/static/../server.py",
        "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/api/runs/private/metrics",
    ):  # fmt: skip
        assert browser.get(path).status_code == 404
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).unlink()
        (run / name).symlink_to(tmp_path / "private" / name)
    assert browser.get(f"{api(run)}/metrics").json()["series"] == {}
    assert browser.get("/api/runs").json()["runs"][0]["last_step"] == 0
    rows = browser.get("/api/settings", params={"run": api(run).rsplit("/", 1)[1]}).json()["rows"]
    assert rows == []


@pytest.mark.parametrize(
    "query", ["start=-1", "width=x", "start=1e3", "start=" + "9" * 30, "stop=²"]
)
def test_numbers_in_addresses_are_checked(tmp_path: pathlib.Path, query: str) -> None:
    run = make_run(tmp_path / "run")
    assert client(run).get(f"{api(run)}/metrics?{query}").status_code == 400


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 16, "x", "-1", "%D9%A1"])
def test_numbers_in_paths_are_checked(tmp_path: pathlib.Path, number: str) -> None:
    run = make_run(tmp_path / "run")
    for path in (f"steps/{number}/groups", f"steps/1/groups/{number}"):
        assert client(run).get(f"{api(run)}/{path}").status_code == 400


def test_summary_shows_before_and_after(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    browser = client(run)
    nothing = {"folder": str(run), "has_report": False, "models": []}
    assert browser.get(f"{api(run)}/summary").json() == nothing
    before, after = {"accuracy": 0.25}, {"accuracy": 0.75, "odd": "text"}
    summary = {"status": "finished", "before": before, "after": after}
    (run / "summary.json").write_text(json.dumps(summary))
    found = browser.get(f"{api(run)}/summary").json()
    assert found == {"before": {"accuracy": 0.25}, "after": {"accuracy": 0.75}, **nothing}
    assert browser.get("/api/runs").json()["runs"][0]["status"] == "finished"


def test_a_truncated_answer_keeps_its_stop_reason(tmp_path: pathlib.Path) -> None:
    cut = group("p")
    cut = type(cut)(cut.problem, cut.prompt_tokens, (answer("a", stop="length"), answer("b")),
                    cut.scores, cut.rewards, cut.advantages)  # fmt: skip
    run = make_run(tmp_path / "run", steps=1, groups=[cut])
    card = client(run).get(f"{api(run)}/steps/1/groups").json()["groups"][0]
    assert [a["stop"] for a in card["answers"]] == ["length", "eos"]
