"""The shape of the code base, held by tests: direction of imports, sizes, what stays light."""

import ast
import pathlib
import subprocess
import sys

from pydantic import BaseModel

from groupwise.config import Config
from groupwise.recipe import _models_in

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "groupwise"

# From the top: a module may import from its own layer and from those below, never from above.
LAYERS = [
    ["cli", "__init__", "__main__"],
    ["check", "compare", "explain", "interop", "pairs", "sample", "view"],
    ["training"],
    ["load"],
    ["evaluate"],
    ["remote"],
    ["rollout"],
    ["reward_models"],
    ["policy"],
    ["batch"],
    ["distributed"],
    ["tasks"],
    ["rewards"],
    ["tracking"],
    ["diagnose"],
    ["recipe", "tiny_run"],
    ["config"],
    ["objective"],
    ["types"],
    ["errors"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def layer(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: pathlib.Path) -> set[str]:
    """Layers that a file imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("groupwise."):
            found.add(str(node.module).split(".")[1])
    return found


def test_imports_point_downward() -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports groupwise.{used}"
        for path in modules()
        for used in imports(path)
        if LEVEL[used] < LEVEL[layer(path)]
    ]
    assert not upward


def test_every_module_has_a_layer_and_a_docstring() -> None:
    for path in modules():
        assert layer(path) in LEVEL, path
        text = path.read_text()
        assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path}: no docstring"


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in [*modules(), *(ROOT / "examples").glob("*.py")]:
        text = path.read_text()
        if text.count("\n") > 400:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > 60:
                    long.append(f"{path.name}: {node.name} has {size} lines")
    assert not long


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils.py", "helpers.py", "misc.py", "common.py"}
    assert not [path for path in modules() if path.name in empty]


def leaves(model: type[BaseModel]) -> int:
    count = 0
    for field in model.model_fields.values():
        inner = _models_in(field.annotation)
        count += sum(leaves(part) for part in inner) if inner else 1
    return count


def test_settings_grow_only_on_purpose() -> None:
    assert leaves(Config) == SETTINGS, "a setting came or went: change the number knowingly"


SETTINGS = 191


def test_every_setting_is_documented() -> None:
    def undocumented(model: type[BaseModel], prefix: str) -> list[str]:
        missing = []
        for name, field in model.model_fields.items():
            inner = _models_in(field.annotation)
            if not inner and name != "kind" and not field.description:
                missing.append(prefix + name)
            for part in inner:
                missing += undocumented(part, f"{prefix}{name}.")
        return missing

    assert undocumented(Config, "") == []


def test_reading_a_config_loads_no_torch() -> None:
    code = (
        "import sys, groupwise.config, groupwise.recipe, groupwise.types;"
        "groupwise.recipe.load_recipe('demo');"
        "heavy = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_evaluates_or_unpickles_what_it_reads() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                call = f"{node.value.id}.{node.attr}"
                assert call not in ("torch.load", "pickle.load", "pickle.loads"), path
