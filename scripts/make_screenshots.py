"""Pictures of the viewer for the documentation: python scripts/make_screenshots.py RUN...

The first run is the one whose answers are shown; that in docs/images is of `make demo`.
`--episodes RUN` names a run with an environment.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "benchmarks"))

from browser import browser, viewer, why_no_browser  # noqa: E402
from groupwise.view.catalog import run_id  # noqa: E402

EARLY_STEP = 6


def save(page: Any, name: str) -> None:
    page.wait_for_timeout(600)  # charts and colours that are on their way
    path = IMAGES / f"viewer-{name}.png"
    page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def go(page: Any, address: str, selector: str) -> None:
    page.evaluate("address => { location.hash = address }", address)
    page.wait_for_selector(selector)


def pictures(page: Any, run: str, episodes: str | None) -> None:
    rollouts = f"#/rollouts/{run}/{EARLY_STEP}"
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        go(page, f"#/overview?runs={run}", ".next a")
        save(page, f"overview-{theme}")
        go(page, rollouts, ".answer .token")
        page.locator(".token[class*=heat]:not(.heat-0)").first.hover()
        save(page, f"rollouts-{theme}")
        page.mouse.move(0, 0)
    page.emulate_media(color_scheme="light")
    go(page, f"#/held-out/{run}", ".table td")
    save(page, "test")
    if episodes is not None:
        go(page, f"#/rollouts/{episodes}", ".conversation .token")
        save(page, "episode")
    page.set_viewport_size({"width": 390, "height": 780})
    go(page, rollouts, ".answer .token")
    save(page, "phone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--episodes", type=Path, help="a run whose answers are conversations")
    options = parser.parse_args()
    episodes = options.episodes and run_id(options.episodes)
    runs = [*options.runs, *([options.episodes] if options.episodes else [])]
    problem = why_no_browser()
    if problem is not None:
        sys.exit(problem)
    with viewer(*runs) as served, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1180, "height": 720})
        shown = ",".join(run_id(run) for run in options.runs)
        page.goto(f"{served.address}#/overview?runs={shown}")
        page.wait_for_selector(".chart canvas")
        pictures(page, run_id(options.runs[0]), episodes)


if __name__ == "__main__":
    main()
