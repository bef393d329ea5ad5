"""Documentation that runs: every Python snippet and command shown, and the generated page."""

import importlib.util
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """The fenced blocks of a page that are marked with this language ("" for none)."""
    fences = re.split(r"^```(.*)$", page.read_text(), flags=re.M)
    opened = zip(fences[1::4], fences[2::4], strict=True)  # every other fence closes
    return [text for found, text in opened if found == language]


def lane(page: pathlib.Path) -> list[pytest.MarkDecorator]:
    """What the README shows is run in the fast lane, the other pages in the slow one."""
    return [] if page.name == "README.md" and page.parent == ROOT else [pytest.mark.slow]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=lane(p), id=p.name) for p in PAGES if blocks(p, "python")],
)
def test_python_snippets_run(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def commands(page: pathlib.Path) -> list[str]:
    found = re.findall(r"^(groupwise [a-z].*)$", "\n".join(blocks(page, "")), re.M)
    return [line.split("  #")[0].strip() for line in found]


# Servers do not end: tests/view/test_view_command.py, tests/remote/test_reference_runs.py and
# tests/rollout/test_worker_runs.py run those that are shown.
SHOWN = [
    pytest.param(page.name, line, marks=lane(page))
    for page in PAGES
    for line in commands(page)
    if not line.startswith(("groupwise view", "groupwise serve"))
]


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What `runs/demo` stands for in the text: a run of the demo, with few steps."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    few = ["steps=2", "batch.prompts=4", "eval.problems=4", "eval.every=0", "--quiet"]
    command = [sys.executable, "-m", "groupwise", "train", "demo", *few, "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_commands_shown_work(
    page: str, command: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    """With files as the text describes them, and few steps."""
    if " runs/demo" in command and not command.startswith("groupwise train"):
        shutil.copytree(request.getfixturevalue("demo_run"), tmp_path / "runs" / "demo")
    lines = [f'{{"prompt": "What is {i}+{i}?", "answer": "{2 * i}"}}' for i in range(60)]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines))
    (tmp_path / "my_rewards.py").write_text(
        "def short(completions, **columns):\n    return [-len(t) / 100 for t in completions]\n"
    )
    words = shlex.split(command)
    if words[1] == "train":
        words += ["steps=1", "eval.problems=4", "eval.every=0", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "groupwise", *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_configuration_page_is_up_to_date() -> None:
    path = ROOT / "scripts" / "make_configuration_page.py"
    spec = importlib.util.spec_from_file_location("make_configuration_page", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), f"run python {path.relative_to(ROOT)}"


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
