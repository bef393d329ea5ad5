"""docs/scaling.md says what the code computes."""

import importlib.util
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[3]


def script() -> object:
    path = ROOT / "scripts" / "make_scaling_page.py"
    spec = importlib.util.spec_from_file_location("make_scaling_page", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_tables_and_outputs_are_what_the_code_computes() -> None:
    module = script()
    text = module.PAGE.read_text()  # pyright: ignore[reportAttributeAccessIssue]
    made = module.MADE  # pyright: ignore[reportAttributeAccessIssue]
    assert set(re.findall(r"<!-- (?!end)(.*?) -->", text)) == set(made)
    again = module.page(text)  # pyright: ignore[reportAttributeAccessIssue]
    assert again == text, "run python scripts/make_scaling_page.py"


def test_plans_on_paper_fit_unless_the_page_says_otherwise() -> None:
    """The one line that is there to show a limit: 70 B on 80 GB, sampled from there."""
    text = (ROOT / "docs" / "scaling.md").read_text()
    paper = text.split("## On paper")[1].split("How the volumes")[0]
    too_large = [line for line in paper.splitlines() if "| **" in line]
    assert len(too_large) == 1 and "| 70b | all weights | h100, fsdp2 |" in too_large[0]
