"""What `pip install groupwise` brings: the wheel holds all that a checkout has, and works alone."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=300)
    (path,) = folder.glob("groupwise-*.whl")
    return zipfile.ZipFile(path)


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
    metadata = wheel.read(name).decode()
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
