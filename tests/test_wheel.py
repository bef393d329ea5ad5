"""What `pip install groupwise` brings: the wheel holds all that a checkout has, and works alone."""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def built(source: pathlib.Path, folder: pathlib.Path, repository: str = "") -> zipfile.ZipFile:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        env={**os.environ, "GROUPWISE_REPOSITORY": repository}, check=True, timeout=300,
    )  # fmt: skip
    (path,) = folder.glob("groupwise-*.whl")
    return zipfile.ZipFile(path)


def metadata_of(wheel: zipfile.ZipFile) -> str:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    return wheel.read(name).decode()


def links_of(wheel: zipfile.ZipFile) -> dict[str, str]:
    return dict(re.findall(r"^Project-URL: (.+), (.+)$", metadata_of(wheel), re.MULTILINE))


def test_it_holds_every_tracked_file_of_the_package_and_the_recipes(wheel: zipfile.ZipFile) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "groupwise", "recipes"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    tracked = {
        f"groupwise/{name}" if name.startswith("recipes/") else name
        for name in listed.stdout.split()
    }
    assert tracked >= {
        "groupwise/py.typed",
        "groupwise/policy/tiny/model.safetensors",
        "groupwise/view/static/index.html",
        "groupwise/recipes/demo.yaml",
    }
    names = set(wheel.namelist())
    assert tracked - names == set()
    rest = {name.partition("/")[0] for name in names - tracked}
    assert len(rest) == 1 and rest.pop().endswith(".dist-info"), "the wheel holds other files"


def test_it_is_licensed_and_typed(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    metadata = metadata_of(wheel)
    assert "License-Expression: Apache-2.0" in metadata and "Typing :: Typed" in metadata
    folder = name.removesuffix("METADATA")
    assert b"Apache License" in wheel.read(f"{folder}licenses/LICENSE")


def test_recipes_and_the_model_are_found_without_a_checkout(
    wheel: zipfile.ZipFile, tmp_path: pathlib.Path
) -> None:
    wheel.extractall(tmp_path / "site")
    code = (
        "import groupwise, groupwise.recipe as r; from groupwise.policy.resolve import TINY;"
        "print(groupwise.__file__, r.list_recipes()['demo'], TINY / 'config.json');"
        "assert r.load_recipe('demo').model == 'tiny' and (TINY / 'model.safetensors').is_file()"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    for path in done.stdout.split():
        assert path.startswith(str(tmp_path / "site")), done.stdout


def test_a_wheel_that_is_published_has_links_and_any_other_has_none(
    wheel: zipfile.ZipFile, tmp_path: pathlib.Path
) -> None:
    assert links_of(wheel) == {}
    published = built(ROOT, tmp_path, "https://example.org/me/it/")
    assert links_of(published) == {
        "Homepage": "https://example.org/me/it",
        "Documentation": "https://example.org/me/it/blob/main/docs/index.md",
        "Source": "https://example.org/me/it",
        "Issues": "https://example.org/me/it/issues",
        "Changelog": "https://example.org/me/it/blob/main/CHANGELOG.md",
    }


def test_a_source_distribution_builds_a_wheel_with_the_same_links(tmp_path: pathlib.Path) -> None:
    address = "https://example.org/me/it"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "GROUPWISE_REPOSITORY": address}, check=True, timeout=300,
        capture_output=True,
    )  # fmt: skip
    (path,) = tmp_path.glob("groupwise-*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / path.name.removesuffix(".tar.gz")
    assert (source / "hatch_build.py").is_file()
    assert links_of(built(source, tmp_path))["Source"] == address
