"""The viewer in a real browser: what a person sees, presses and must be safe from."""

import pathlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from groupwise.tracking.run import RunFolder
from groupwise.types import Completion, Episode, Group
from groupwise.view.catalog import run_id
from runs import small_config
from viewer_runs import append_metrics, group, make_run, row

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

from browser import browser, viewer, why_no_browser

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\x1b[2J \u202egnp\ud800"
)


BEFORE = [{"id": "a", "question": "1", "correct": 0.0, "reward": 0.2, "text": "it is 43"}]
AFTER = [{"id": "a", "question": "1", "correct": 1.0, "reward": 1.2, "text": "it is -67"}]


def episode_group() -> Group:
    """An episode of two turns with a hostile reply between them."""
    call = {"function": {"name": "add", "arguments": {"a": 3, "b": HOSTILE}}}
    messages = (
        {"role": "assistant", "content": "So:", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": HOSTILE},
        {"role": "assistant", "content": "7"},
    )
    episode = Episode(messages, (2, 1), (None, 0.5), {"won": 1.0}, calls=1)
    spoken = Completion(
        (5, 6, 7, 8), (-0.1, -0.2, 0.0, -0.4), "eos", "7", sampled=(True, True, False, True),
        episode=episode,
    )  # fmt: skip
    return replace(group("talk"), completions=(spoken, spoken))


def same_group() -> Group:
    texts = ("same", "same", "same", "other one")
    return group("fold", texts, (1.0, 1.0, 1.0, 0.0))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("browser")
    groups = [group(f"p{i}", (f"right {i}", "wrong")) for i in range(30)]
    make_run(folder / "seed0", steps=30, groups=groups, seed=0)
    make_run(folder / "seed1", steps=30, groups=groups, seed=1)
    hostile = [group(HOSTILE, (HOSTILE, "y" * 9000), prompt=HOSTILE)]
    make_run(folder / "hostile", steps=2, groups=hostile, model="no/tokenizer")
    talks = [episode_group(), same_group()]
    tools = make_run(folder / "tools", steps=3, groups=talks, batch__prompts=5)
    with RunFolder(tools, small_config("batch.prompts=5")) as run:
        run.log_evaluation("before", BEFORE)
        run.log_evaluation("after", AFTER)
    return folder


@pytest.fixture(scope="module")
def address(runs: pathlib.Path) -> Iterator[str]:
    with viewer(runs) as served:
        yield served.address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    reason = why_no_browser()
    if reason is not None:
        pytest.skip(reason)
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    """The overview, in a fresh profile; fails for any error, and for any request elsewhere."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800})
    opened = context.new_page()
    problems: list[str] = []
    base = address.partition("/?")[0]
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("dialog", lambda dialog: problems.append("a dialog opened"))
    opened.on("console", lambda m: problems.append(m.text) if "Policy" in m.text else None)
    opened.on("request", lambda r: None if r.url.startswith(base) else problems.append(r.url))
    opened.goto(address)
    opened.wait_for_selector(".chart canvas")
    yield opened
    context.close()
    assert problems == []


def visit(page: Any, hash: str, selector: str) -> None:
    page.evaluate("hash => { location.hash = hash }", hash)
    page.wait_for_selector(selector)


def test_curves_are_drawn_and_seeds_are_one_band(page: Any) -> None:
    label = page.locator(".chart[aria-label=reward] .lines").inner_text()
    # As drawn, and behind it as logged: the two differ where the line is smoothed.
    assert re.search(r"seed0 and 1 more\s*2\.9\d+ \(3\)", label), label
    assert re.search(r"hostile\s*0\.\d+ \(0\.2", label), label
    assert "token=" not in page.url
    inked = """() => { const c = document.querySelector('.chart canvas');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0) }"""
    assert page.evaluate(inked)


def test_a_run_that_goes_on_is_followed(page: Any, runs: pathlib.Path) -> None:
    append_metrics(runs / "hostile", row(3, loss=0.1, reward=0.77, seconds=1.0))
    page.wait_for_function(
        "() => document.querySelector('.chart[aria-label=reward] .lines').textContent"
        ".includes('(0.770)')"
    )
    assert "3/4" in page.locator(".run", has_text="hostile").inner_text()


def test_dragging_zooms_and_a_double_click_goes_back(page: Any) -> None:
    box = page.locator(".chart .u-over").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=4)
    with page.expect_request(lambda request: "stop=" in request.url):  # finer data
        page.mouse.up()
    whole = page.get_by_role("button", name="Show all steps")
    whole.wait_for()
    page.locator(".chart .u-over").first.dblclick()
    whole.wait_for(state="hidden")


def test_the_keyboard_is_enough(page: Any, runs: pathlib.Path) -> None:
    page.keyboard.press("2")
    page.wait_for_selector(".card")
    visit(page, f"#/rollouts/{run_id(runs / 'seed0')}/30", ".card[data-group='0'] .token")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => location.hash.endsWith('/29')")
    page.wait_for_selector(".card")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("() => document.activeElement.dataset.group") == "1"
    page.keyboard.press("k")
    assert page.evaluate("() => document.activeElement.dataset.group") == "0"
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.type") == "search"
    page.keyboard.type("j")  # typing is typing
    assert page.locator("main input[type=search]").input_value() == "j"
    page.keyboard.press("Escape")
    before = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()


def test_answers_are_ranked_and_tokens_tell_their_numbers(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'seed0')}/30", ".card .token")
    card = page.locator(".card").first
    assert card.locator(".advantage").all_inner_texts() == ["+0.50", "−0.50"]
    assert card.locator(".badge.good").count() == 1 and card.locator(".badge.bad").count() == 1
    card.locator(".token").nth(1).hover()
    tooltip = page.locator("#tooltip")
    assert "log-prob" in tooltip.inner_text() and "-0.200 (p = 0.819)" in tooltip.inner_text()


def test_all_groups_of_a_step_come_while_scrolling(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'seed0')}/30", ".card")
    for _ in range(600):  # for half a minute at most
        if page.locator(".card").count() == 30:
            break
        page.mouse.wheel(0, 3000)
        page.wait_for_timeout(50)
    assert page.locator(".card").count() == 30


def test_what_a_model_wrote_is_text(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'hostile')}/2", ".card .text")
    text = page.locator(".answer .text").first.inner_text()
    assert "<script>window.hacked=1</script>" in text and "<img src=x" in text
    assert page.locator("main .hidden-character").all_inner_texts().count("U+202E") >= 2
    assert page.locator("main script, main img").count() == 0
    more = page.get_by_role("button", name="Show more (4,000 of 9,000 characters)")
    more.click()
    more.wait_for(state="detached")
    assert page.locator(".answer .text").nth(1).inner_text() == "y" * 9000
    page.locator(".card h3 a").click()
    page.wait_for_selector(".sides .card >> nth=1")
    for number in "1345":
        page.keyboard.press(number)
        page.wait_for_timeout(300)
    assert page.evaluate("() => window.hacked") is None


def test_a_search_over_all_steps_leads_to_the_answer(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'seed0')}/30", ".card")
    page.get_by_label("in all steps").check()
    page.get_by_label("Search prompts and answers").fill("right 7")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('[role=status]')?.textContent.includes('all 30 steps')"
    )
    assert page.locator(".found li").count() == 30
    page.locator(".found li a").nth(4).click()
    page.wait_for_selector(".answer.marked")
    assert page.url.endswith("/5?group=7&answer=0")
    assert "p7" in page.locator(".card", has=page.locator(".marked")).inner_text()
    top = page.locator(".answer.marked").bounding_box()["y"]
    assert 0 <= top < 800
    assert page.locator(".card").first.get_attribute("data-group") == "7"


def test_a_problem_is_followed_from_its_first_answers_to_its_last(
    page: Any, runs: pathlib.Path
) -> None:
    visit(page, f"#/problems/{run_id(runs / 'seed0')}", "tbody tr")
    assert page.locator("tbody tr").count() == 30
    page.get_by_role("link", name="p7", exact=True).click()
    page.wait_for_selector(".sides .card >> nth=1")
    chosen = page.locator(".sides select").evaluate_all("all => all.map(s => s.selectedIndex)")
    assert chosen == [0, 29]


def test_settings_show_differences(page: Any) -> None:
    for name in ("hostile", "tools"):
        page.locator(".run", has_text=name).locator("input").uncheck()
    page.keyboard.press("4")
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").all_inner_texts() == ["seed\t0\t1"]
    page.get_by_label("only differences").uncheck()
    assert page.locator("tbody tr").count() > 50


@pytest.mark.parametrize("width", [360, 768])
def test_it_fits_a_phone(page: Any, runs: pathlib.Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    id = run_id(runs / "hostile")
    pages = ("overview", f"rollouts/{id}/2", f"problems/{id}", f"held-out/{id}", "settings")
    for hash in (*pages, "findings", "runs", f"rollouts/{run_id(runs / 'tools')}/1"):
        visit(page, f"#/{hash}", "main > div")
        page.wait_for_timeout(300)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, hash
        last = page.locator("#pages a").last.bounding_box()
        assert last["x"] + last["width"] <= width, "the tabs do not fit"


def test_everything_has_a_name(page: Any, runs: pathlib.Path) -> None:
    nameless = """() => [...document.querySelectorAll('button, input, select, a')]
      .filter(e => !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length))
      .map(e => e.outerHTML)"""
    pages = ("overview", f"rollouts/{run_id(runs / 'seed0')}/3", "problems", "settings", "runs")
    for hash in pages:
        visit(page, f"#/{hash}", "main > div")
        page.wait_for_timeout(300)
        assert page.evaluate(nameless) == []


def test_an_episode_is_a_conversation(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'tools')}/1", ".conversation .token")
    talk = page.locator(".conversation").first
    assert talk.locator(".message").count() == 3
    assert talk.locator(".message.sampled").count() == 2
    assert talk.locator(".message.sampled .token").count() == 3  # the reply's token is not its own
    assert talk.locator(".message.given .token").count() == 0
    assert "<script>window.hacked=1</script>" in talk.locator(".message.given").inner_text()
    assert "reward +0.50" in talk.locator(".message.sampled").nth(1).inner_text()
    assert talk.locator(".call b").inner_text() == "add"
    assert page.evaluate("() => window.hacked") is None


def test_same_answers_are_folded_and_two_are_compared_by_a_link(
    page: Any, runs: pathlib.Path, address: str
) -> None:
    visit(page, f"#/rollouts/{run_id(runs / 'tools')}/1", ".card[data-group='1'] .answer")
    card = page.locator(".card[data-group='1']")
    assert card.locator(".answer").count() == 2
    assert card.locator(".times").all_inner_texts() == ["×3"]
    for button in card.locator("button.compare").all():
        button.click()
    page.wait_for_selector(".comparing .pair")
    assert page.locator(".comparing del").inner_text() == "same"
    assert page.locator(".comparing ins").inner_text() == "other one"
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".comparing ins")


def test_held_out_answers_stand_before_and_after(page: Any, runs: pathlib.Path) -> None:
    visit(page, f"#/held-out/{run_id(runs / 'tools')}", ".pair")
    assert page.locator(".pair del").inner_text() == "43"
    assert page.locator(".pair ins").inner_text() == "-67"
    visit(page, f"#/overview?runs={run_id(runs / 'tools')}", ".chart[aria-label='eval/accuracy']")
    told = page.locator(".story").inner_text()
    assert re.search(r"100\s%\s+of 1 test problems? answered right, up from 0\s%", told), told
    page.wait_for_selector(".chart[aria-label='eval/accuracy'] canvas")
    words = page.locator(".chart[aria-label='eval/accuracy'] .readout").inner_text()
    assert re.fullmatch(r"100\s%", words)


def test_what_is_chosen_is_in_the_address(page: Any, runs: pathlib.Path) -> None:
    page.get_by_label("Find a metric").fill("reward")
    page.get_by_label("Log scale").check()
    page.get_by_label("Axis").select_option("seconds")
    page.locator(".run", has_text="hostile").locator("input").uncheck()
    link = page.url
    assert "q=reward" in link and "log=yes" in link and "x=seconds" in link and "runs=" in link
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".chart canvas")
    assert page.get_by_label("Axis").input_value() == "seconds"
    assert page.get_by_label("Log scale").is_checked()
    assert not page.locator(".run", has_text="hostile").locator("input").is_checked()
    names = page.locator(".chart").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert "reward" in names and "loss" not in names


def test_a_link_to_the_page_that_is_open_is_followed(page: Any, runs: pathlib.Path) -> None:
    answers = f"#/rollouts/{run_id(runs / 'seed0')}"
    visit(page, f"{answers}/3", ".card")
    visit(page, f"{answers}/3?filter=truncated&everywhere=yes", "p:has-text('0 found')")
    assert page.get_by_label("Which answers").input_value() == "truncated"
    assert page.get_by_label("in all steps").is_checked()
    page.keyboard.press("4")
    page.get_by_label("Search settings").fill("seed")
    page.get_by_label("only differences").uncheck()
    assert "q=seed" in page.url and "only=no" in page.url


def test_the_focus_survives_what_is_new(page: Any, runs: pathlib.Path) -> None:
    box = page.locator(".run", has_text="seed0").locator("input")
    box.focus()
    append_metrics(runs / "seed0", row(31, loss=0.1, reward=3.0, seconds=1.0))
    page.wait_for_function("() => document.querySelector('#runs').textContent.includes('31')")
    key = page.evaluate("() => document.activeElement.dataset.key")
    assert key == run_id(runs / "seed0")


def test_runs_are_sorted_hidden_and_noted(page: Any, runs: pathlib.Path) -> None:
    visit(page, "#/runs", "tbody tr")
    names = page.locator("tbody th a")
    assert names.all_inner_texts() == ["hostile", "seed0", "seed1", "tools"]
    page.get_by_role("button", name="run ↑").click()
    assert names.all_inner_texts() == ["tools", "seed1", "seed0", "hostile"]
    page.get_by_label("note of seed1").fill("the good one")
    page.keyboard.press("Enter")
    page.get_by_label("Search runs").fill("good one")
    assert names.all_inner_texts() == ["seed1"]
    page.get_by_role("button", name="hide", exact=True).click()
    assert page.locator(".run", has_text="seed1").count() == 0
    page.get_by_role("button", name="unhide").click()
    assert page.locator(".run", has_text="seed1").count() == 1


def test_a_chart_is_saved_and_fills_the_screen(page: Any) -> None:
    chart = page.locator(".chart[aria-label=reward]")
    chart.locator(".menu summary").click()
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    lines = pathlib.Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "line,step,x,value" and any(",30,30," in line for line in lines)
    chart.get_by_role("button", name="Reward: full screen").click()
    assert chart.bounding_box()["width"] > 1100
    page.keyboard.press("Escape")
    assert chart.bounding_box()["width"] < 700
