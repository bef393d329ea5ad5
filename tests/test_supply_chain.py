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
