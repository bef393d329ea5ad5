"""What an installation brings along is pinned to files by their hashes, and to the same versions
that are tested."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parent.parent


def pinned(file: str) -> dict[str, str]:
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / file).read_text(), re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in lines}


def test_the_lock_has_the_versions_that_are_tested() -> None:
    lock, constraints = pinned("requirements.lock"), pinned("constraints.txt")
    assert {n: v for n, v in lock.items() if n in constraints} == {
        n: v for n, v in constraints.items() if n in lock
    }, "run `make lock`"


def test_the_lock_has_all_of_the_core_and_a_hash_for_each() -> None:
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    assert len(blocks) == len(pinned("requirements.lock")) > 40
    assert all("--hash=sha256:" in block for block in blocks)
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", line)[0]).lower() for line in core}
    assert names <= set(pinned("requirements.lock")), "run `make lock`"


def test_the_dockerfile_names_files_extras_and_a_command_that_exist() -> None:
    """No image is built by the tests, so what it would be built from is looked at."""
    text = (ROOT / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    missing = [name for names in copied for name in names if not (ROOT / name).exists()]
    assert copied and not missing
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'pip install .*"\.\[(.*)\]"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (command,) = re.findall(r'^ENTRYPOINT \["(.*)"\]', text, re.MULTILINE)
    assert command in project["scripts"]
