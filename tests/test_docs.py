"""Documentation that runs: every Python snippet and command shown, and the generated page."""

import importlib.util
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
import typer
import yaml

from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.recipe import parse

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """The fenced blocks of a page that are marked with this language ("" for none)."""
    fences = re.split(r"^```(.*)$", page.read_text(), flags=re.M)
    opened = zip(fences[1::4], fences[2::4], strict=True)  # every other fence closes
    return [text for found, text in opened if found == language]


def write_files(page: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Snippets that begin with `# name.py` become that file; the others are returned."""
    snippets: list[str] = []
    for text in blocks(page, "python"):
        named = re.match(r"\n# (\w+\.py)\n", text)
        if named:
            (folder / named[1]).write_text(text)
        else:
            snippets.append(text)
    return snippets


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES if blocks(p, "python")])
def test_python_snippets_run(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = "\n".join(write_files(page, tmp_path))
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
    pytest.param(page, line, id=f"{page.name}-{line}")
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


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_commands_shown_work(
    page: pathlib.Path, command: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    """With files as the text describes them, and few steps."""
    if " runs/demo" in command and not command.startswith("groupwise train"):
        shutil.copytree(request.getfixturevalue("demo_run"), tmp_path / "runs" / "demo")
    lines = [f'{{"prompt": "What is {i}+{i}?", "answer": "{2 * i}"}}' for i in range(60)]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines))
    write_files(page, tmp_path)
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
    module = script("make_configuration_page")
    assert module.PAGE.read_text() == module.page(), "run python scripts/make_configuration_page.py"


@pytest.mark.parametrize("name", ["coming_from", "troubleshooting"])
def test_settings_rewards_and_commands_that_tables_name_exist(name: str) -> None:
    cells = re.findall(r"`([^`]+)`", (ROOT / "docs" / f"{name}.md").read_text())
    settings = [cell for cell in cells if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*=[\w.-]+", cell)]
    assert len(settings) > 5
    for setting in settings:
        parse({}, ["adapter=lora", "task=gsm8k", setting])
    for section in ("batch", "rollout", "optimizer"):
        fields = type(getattr(Config(), section)).model_fields
        for field in re.findall(rf"`{section}\.([a-z_]+)", " ".join(f"`{cell}" for cell in cells)):
            assert field in fields, f"{section}.{field}"
    commands = {cell.split()[1] for cell in cells if cell.startswith("groupwise ")}
    assert commands <= set(typer.main.get_command(app).commands)  # pyright: ignore


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_source_files_that_pages_name_exist() -> None:
    """By their path in the repository, or inside groupwise/."""
    for page in PAGES:
        for name in re.findall(r"(?<![\w/.~-])((?:[a-z_]+/)+[a-z_]+\.py)\b", page.read_text()):
            there = [(folder / name).exists() for folder in (ROOT, ROOT / "groupwise")]
            assert any(there), f"{page.name} names {name}, which does not exist"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of_nav() -> dict[str, list[str]]:
    """The pages of the site by group, as mkdocs.yml has them; recipes by their first page."""
    without_tags = re.sub(r"!!python/name:\S+|!ENV", "", (ROOT / "mkdocs.yml").read_text())
    groups: dict[str, list[str]] = {}
    for group in yaml.safe_load(without_tags)["nav"]:
        ((name, entries),) = group.items()
        places = [next(iter(e.values())) if isinstance(e, dict) else e for e in entries]
        groups[name] = [place[0] if isinstance(place, list) else place for place in places]
    return groups


def test_the_readme_and_the_first_page_list_the_pages_of_the_site() -> None:
    nav = pages_of_nav()
    assert list(nav) == ["Start", "Use", "Understand", "Operate"]
    readme, first = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    for group, pages in nav.items():
        (row,) = re.findall(rf"^\| \*\*{group}\*\* \|.*$", readme, re.M)
        assert re.findall(r"\]\(docs/([^)]+)\)", row) == pages
        section = first.split(f"\n## {group}\n")[1].split("\n## ")[0]
        assert set(re.findall(r"\]\(([^)]+)\)", section)) == set(pages) - {"index.md"}


def test_links_to_source_files_become_text_on_the_site_or_lead_to_the_repository() -> None:
    replace = script("docs_site").without_outside_links
    link = "see [the loop](../../groupwise/errors.py)"
    assert replace(link, "recipes/demo.md", None) == "see the loop"
    assert replace(link, "recipes/demo.md", "https://host/me/it/") == (
        "see [the loop](https://host/me/it/blob/main/groupwise/errors.py)"
    )
    for kept in ("[a page](../tasks.md)", "[gone](../../groupwise/nothing.py)"):
        assert replace(kept, "recipes/demo.md", None) == kept


def test_every_test_that_the_security_page_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, function in named:
        assert not function or f"def {function}(" in (ROOT / file).read_text(), (
            f"{file}::{function}"
        )
        assert (ROOT / file).is_file(), file
