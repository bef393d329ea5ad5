"""The viewer in a real browser: what a person sees, presses and must be safe from."""

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from groupwise.view.catalog import run_id
from viewer_runs import append_metrics, group, make_run, row

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

from browser import browser, viewer, why_no_browser

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\x1b[2J \u202egnp\ud800"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("browser")
    groups = [group(f"p{i}", (f"right {i}", "wrong")) for i in range(30)]
    make_run(folder / "seed0", steps=30, groups=groups, seed=0)
    make_run(folder / "seed1", steps=30, groups=groups, seed=1)
    hostile = [group(HOSTILE, (HOSTILE, "y" * 9000), prompt=HOSTILE)]
    make_run(folder / "hostile", steps=2, groups=hostile, model="no/tokenizer")
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
    assert page.locator("h2", has_text="Reward and accuracy").count() == 1
    label = page.locator(".chart[aria-label=reward] .readout").inner_text()
    assert "seed0 and 1 more 3" in label and "hostile 0.2" in label
    assert "token=" not in page.url
    inked = """() => { const c = document.querySelector('.chart canvas');
      return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0) }"""
    assert page.evaluate(inked)


def test_a_run_that_goes_on_is_followed(page: Any, runs: pathlib.Path) -> None:
    append_metrics(runs / "hostile", row(3, loss=0.1, reward=0.77, seconds=1.0))
    page.wait_for_function(
        "() => document.querySelector('.chart[aria-label=reward] .readout').textContent"
        ".includes('hostile 0.770')"
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
    for _ in range(40):
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
    page.get_by_label("hostile").uncheck()
    page.keyboard.press("4")
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").all_inner_texts() == ["seed\t0\t1"]
    page.get_by_label("only differences").uncheck()
    assert page.locator("tbody tr").count() > 50


@pytest.mark.parametrize("width", [360, 768])
def test_it_fits_a_phone(page: Any, runs: pathlib.Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    id = run_id(runs / "hostile")
    for hash in ("overview", f"rollouts/{id}/2", f"problems/{id}", "settings", "findings"):
        visit(page, f"#/{hash}", "main > div")
        page.wait_for_timeout(300)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, hash


def test_everything_has_a_name(page: Any, runs: pathlib.Path) -> None:
    nameless = """() => [...document.querySelectorAll('button, input, select, a')]
      .filter(e => !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length))
      .map(e => e.outerHTML)"""
    for hash in ("overview", f"rollouts/{run_id(runs / 'seed0')}/3", "problems", "settings"):
        visit(page, f"#/{hash}", "main > div")
        page.wait_for_timeout(300)
        assert page.evaluate(nameless) == []
