"""What an installation brings along is pinned to files by their hashes, and to the same versions
that are tested."""

import json
import pathlib
import re
import tomllib

import yaml

from groupwise.view.serve import NAME_VARIABLE, USUAL_PORT

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


def test_known_holes_are_looked_for_on_every_change_and_every_week() -> None:
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    jobs, when = ci["jobs"], ci[True]  # YAML 1.1 reads `on` as true
    assert {"run": "make audit"} in jobs["audit"]["steps"]
    assert {"push", "pull_request", "schedule"} <= set(when)


def test_a_release_is_tested_listed_audited_and_signed() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    job = release["jobs"]["publish"]
    assert job["permissions"]["id-token"] == job["permissions"]["attestations"] == "write"
    done = [step.get("run") or step["uses"].partition("@")[0] for step in job["steps"]]
    wanted = ["make test", "make audit sbom", "actions/attest-build-provenance",
              "actions/attest-sbom", "pypa/gh-action-pypi-publish"]  # fmt: skip
    assert [step for step in done if step in wanted] == wanted


def test_workflows_run_actions_of_commits_that_nobody_can_move() -> None:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [line for path in workflows for line in re.findall(r"uses: .*", path.read_text())]
    pinned_line = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v[0-9.]+")
    assert len(used) > 10 and [line for line in used if not pinned_line.fullmatch(line)] == []
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert "github-actions" in [update["package-ecosystem"] for update in updates]


def test_the_dockerfile_names_files_extras_and_a_command_that_exist() -> None:
    """No image is built by the tests, so what it would be built from is looked at."""
    text = (ROOT / "Dockerfile").read_text()
    missing = [name for name in copied(text) if not (ROOT / name).exists()]
    assert copied(text) and not missing
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'pip install .*"\.\[(.*)\]"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (command,) = re.findall(r"^ENTRYPOINT (.*)", text, re.MULTILINE)
    assert json.loads(command)[-1] in project["scripts"]


def copied(dockerfile: str) -> list[str]:
    lines = [line.split() for line in dockerfile.splitlines() if line.startswith("COPY ")]
    return [name for words in lines for name in words[1:-1]]


def test_docker_is_sent_what_the_dockerfile_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    kept = [line[1:] for line in patterns if line.startswith("!")]
    assert sorted(kept) == sorted(copied((ROOT / "Dockerfile").read_text()))
    assert patterns[0] == "*", "what follows is all that is sent"
    assert [line for line in patterns[1:] if not line.startswith("!")] == ["**/__pycache__"]


def test_docker_builds_the_package_from_all_that_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = [project["project"]["readme"], *project["project"]["license-files"], *wheel["packages"]]
    needed = {"pyproject.toml", "hatch_build.py", *named, *wheel["force-include"]}
    assert needed <= set(copied((ROOT / "Dockerfile").read_text()))


def test_the_container_page_uses_what_the_dockerfile_has() -> None:
    text, page = (ROOT / "Dockerfile").read_text(), (ROOT / "docs" / "docker.md").read_text()
    arguments = re.findall(r"--build-arg (\w+)=", page)
    assert arguments and set(arguments) <= set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"^ENV (.*)", text, re.M))))
    assert variables[NAME_VARIABLE] == "localhost" and f"-e {NAME_VARIABLE}=" in page
    for inside in re.findall(r'-v "?[^ :]+:([^ "]+)', page):
        assert re.search(rf"chmod 1777 .*{inside}(\s|$)", text), f"{inside} is not open to all"
    assert "/work" in re.findall(r"^WORKDIR (.*)", text, re.MULTILINE)[-1]
    assert f"127.0.0.1:{USUAL_PORT}:{USUAL_PORT}" in page
