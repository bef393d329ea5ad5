"""Settings side by side, findings, and files that are made to hurt."""

import json
import pathlib

import pytest

from groupwise.diagnose import diagnose
from groupwise.view.catalog import Run, run_id
from groupwise.view.settings import read_settings, table
from groupwise.view.stored_group import Unreadable
from viewer_runs import api, client, make_run


def test_runs_are_compared_setting_by_setting(tmp_path: pathlib.Path) -> None:
    first = make_run(tmp_path / "a", seed=0)
    second = make_run(tmp_path / "b", seed=3, batch__prompts=7)
    params = {"run": [run_id(first), run_id(second)]}
    rows = client(tmp_path).get("/api/settings", params=params).json()["rows"]
    differing = {row["name"]: row["values"] for row in rows if row["differs"]}
    assert differing == {"seed": ["0", "3"], "batch.prompts": ["3", "7"]}
    assert {"name": "steps", "values": ["4", "4"], "differs": False} in rows


def test_rewards_and_missing_limits_are_shown_in_words() -> None:
    rewards = [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 0.2, "options": {"k": 1}}]
    (rewards_row, limit, other) = table(
        [{"rewards": rewards, "reward_timeout": 1e9, "odd": [{"name": "a"}]}]
    )
    assert rewards_row["values"] == ['a x 1.0, b x 0.2 {"k": 1}']
    assert limit["values"] == ["no limit"] and other["values"] == ['[{"name": "a"}]']


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)


@pytest.mark.parametrize("text", [BOMB, "a: [", "x" * 2_000_000, "[" * 20_000, "a: !!python/x y"])
def test_a_config_made_to_hurt_is_refused_in_words(tmp_path: pathlib.Path, text: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.yaml").write_text(text)
    with pytest.raises(Unreadable, match=r"config\.yaml"):
        read_settings(Run("id", "run", run))
    browser = client(run)
    [line] = browser.get("/api/runs").json()["runs"]
    assert "config.yaml" in line["problem"] and line["last_step"] == 3
    assert browser.get(f"{api(run)}/metrics").status_code == 200


def test_findings_are_those_of_the_diagnosis(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=0)
    rows = [{"step": s, "reward": 0.5, "no_spread": 1.0, "reward_std": 0.0} for s in range(1, 41)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = client(run).get(f"{api(run)}/findings").json()
    expected = [finding.code for finding in diagnose(rows)]
    assert "no_spread" in expected
    assert [finding["code"] for finding in found["findings"]] == expected
    assert found["read"] == found["rows"] == 40 and found["findings"][0]["advice"]
