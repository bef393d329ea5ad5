"""The shape of the code base, held by tests: direction of imports, sizes, what stays light."""

import ast
import graphlib
import pathlib
import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest
from pydantic import BaseModel

from groupwise.config import Config
from groupwise.config.validation import models_in

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "groupwise"

sys.path.insert(0, str(ROOT / "scripts"))

from make_architecture_page import (  # noqa: E402
    LAYERS,
    PAGE,
    direct,
    imports,
    module_of,
    page,
    uses,
)
from make_configuration_page import descriptions  # noqa: E402


@cache
def modules() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def nodes(path: pathlib.Path) -> list[ast.AST]:
    """All of a file's syntax tree; the first is the module."""
    return list(ast.walk(ast.parse(path.read_text())))


def test_imports_point_downward() -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports groupwise.{used}"
        for path in modules()
        for used in imports(path.read_text())
        if LAYERS.index(used) < LAYERS.index(module_of(path))
    ]
    assert not upward, "imports point downward in LAYERS of scripts/make_architecture_page.py"


def test_every_module_has_one_layer() -> None:
    assert len(LAYERS) == len(set(LAYERS))
    assert {module_of(path) for path in modules()} == set(LAYERS)


@pytest.mark.parametrize(
    "source",
    [
        "from groupwise.batch import Rows",
        "import groupwise.batch",
        "from groupwise import batch",
        "def f():\n    from groupwise.batch import Rows",
        "if TYPE_CHECKING:\n    import groupwise.batch as b",
        "load('groupwise.batch')",
        "PLACE = {'rows': 'groupwise.batch:Rows'}",
    ],
)
def test_imports_are_seen_wherever_they_stand(source: str) -> None:
    assert imports(source) == {"batch"}


def test_what_is_no_import_is_not_taken_for_one() -> None:
    assert imports("from groupwise import __version__") == {"__init__"}
    assert imports("import torch\nprint('see groupwise.batch for more')") == set()


def test_the_page_shows_the_imports_that_there_are() -> None:
    assert PAGE.read_text() == page(), "run python scripts/make_architecture_page.py"


def test_the_picture_leaves_out_only_what_can_be_reached_through_another_module() -> None:
    used, shown = uses(), direct(uses())
    for module in reversed(LAYERS):
        reached = set(shown[module]).union(*(used[below] for below in shown[module]))
        while more := set().union(*(used[below] for below in reached)) - reached:
            reached |= more
        assert used[module] <= reached, module
        assert set(shown[module]) <= used[module]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count too."""
    files = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in modules()}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imported: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                for part in node.names:
                    full = f"{node.module}.{part.name}"
                    imported[name].add(full if full in files else str(node.module))
    order = graphlib.TopologicalSorter({n: used & files.keys() for n, used in imported.items()})
    order.prepare()  # raises CycleError, which names the modules


def test_every_file_has_a_docstring() -> None:
    for path in modules():
        module = nodes(path)[0]
        assert isinstance(module, ast.Module)
        assert not path.read_text().strip() or ast.get_docstring(module), f"{path}: no docstring"


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in [*modules(), *(ROOT / "examples").glob("*.py")]:
        text = path.read_text()
        if text.count("\n") > 400:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                # What a GPU kernel holds is in registers: it cannot be handed from part to part.
                kernel = any(ast.unparse(each) == "triton.jit" for each in node.decorator_list)
                if size > (100 if kernel else 60):
                    long.append(f"{path.name}: {node.name} has {size} lines")
    assert not long


def test_the_whole_algorithm_can_be_read_in_one_sitting() -> None:
    section = PAGE.read_text().split("## The whole algorithm")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", section)
    assert len(files) == 13
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in files) < 1200


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils.py", "helpers.py", "misc.py", "common.py"}
    assert not [path for path in modules() if path.name in empty]


def test_no_two_classes_share_a_name() -> None:
    names = [n.name for path in modules() for n in nodes(path) if isinstance(n, ast.ClassDef)]
    assert not [name for name, count in Counter(names).items() if count > 1]


def leaves(model: type[BaseModel]) -> int:
    count = 0
    for field in model.model_fields.values():
        inner = models_in(field.annotation)
        count += sum(leaves(part) for part in inner) if inner else 1
    return count


def test_settings_grow_only_on_purpose() -> None:
    assert leaves(Config) == SETTINGS, "a setting came or went: change the number knowingly"


SETTINGS = 357


def test_every_setting_is_documented() -> None:
    def undocumented(model: type[BaseModel], prefix: str) -> list[str]:
        missing = []
        described = descriptions(model)
        for name, field in model.model_fields.items():
            inner = models_in(field.annotation)
            if not inner and name != "kind" and not described.get(name):
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
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                call = f"{node.value.id}.{node.attr}"
                assert call not in ("torch.load", "pickle.load", "pickle.loads"), path


# They look at settings and build nothing that is run: no task, no reward.
LOOKERS = {
    "explain/step.py",
    "interop/folder.py",
    "interop/import_trl.py",
    "report/compare.py",
    "report/run_page.py",
    "tracking/run.py",
}


def test_configs_that_are_run_are_read_where_their_code_is_checked() -> None:
    readers = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        if "read_yaml(" in path.read_text() and path.parent.name != "recipe"
    }
    # cli/app.py changes what it has read, and then hands it to parse_file.
    assert readers == LOOKERS | {"cli/app.py"}
    assert "parse_file(" in (PACKAGE / "cli" / "app.py").read_text()
    for name in LOOKERS - {"explain/step.py"}:
        text = (PACKAGE / name).read_text()
        assert "build_task" not in text and "load_parts" not in text, name


def test_models_are_loaded_without_code_of_their_own() -> None:
    for path in modules():
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if node.func.attr in ("from_pretrained", "from_config") and owner != "PeftModel":
                passed = {k.arg: k.value for k in node.keywords}
                value = passed.get("trust_remote_code")
                assert isinstance(value, ast.Constant) and value.value is False, (
                    f"{path}:{node.lineno}"
                )


def test_tokenizers_are_called_where_their_panics_become_errors() -> None:
    for path in modules():
        if path.name in ("tokenizing.py", "pretrained.py"):
            continue
        for node in nodes(path):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            assert not re.search(r"\btokenizer(\.(encode|decode|batch_decode))?$", called), (
                f"{path}:{node.lineno}: use groupwise.policy.tokenizing"
            )


LIBRARIES = {"torch", "transformers", "accelerate", "peft", "deepspeed", "bitsandbytes", "datasets"}
DOCUMENTED = {"_asdict", "_fields", "_replace", "_exit", "__version__", "__name__", "__init__",
              "__file__", "__module__", "__path__", "__setattr__", "__traceback__"}  # fmt: skip
"""Of named tuples, `os` and Python itself."""


def is_private(name: str) -> bool:
    return name.startswith("_") and name not in DOCUMENTED


def defined_in(tree: ast.Module) -> set[str]:
    """Names that a file gives to its own functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                names.add(node.attr)
    return names


def private_uses(text: str) -> list[tuple[int, str]]:
    """Lines that use private parts of other code, or replace a module's class or forward."""
    tree = ast.parse(text)
    own = defined_in(tree)
    uses = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                private = False
            case ast.Attribute(attr="__cause__" | "__context__"):  # the language's own
                private = False
            case ast.Attribute(attr="__class__" | "forward"):
                private = not isinstance(node.ctx, ast.Load)
            case ast.Attribute():
                private = is_private(node.attr) and (
                    node.attr not in own or ast.unparse(node.value).split(".")[0] in LIBRARIES
                )
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr")):
                name = ast.literal_eval(node.args[1]) if _is_text(node.args[1]) else ""
                dunder = name.startswith("__") and name.endswith("__")
                private = (is_private(name) and not dunder) or name == "forward"
            case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"))):
                private = not isinstance(node.ctx, ast.Load)
            case ast.Import() | ast.ImportFrom():
                path = [getattr(node, "module", None) or "", *(name.name for name in node.names)]
                parts = {part for module in path for part in module.split(".")}
                private = path[0] != "__future__" and any(is_private(part) for part in parts)
            case _:
                continue
        if private:
            uses.append((node.lineno, ast.unparse(node)))
    return uses


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_only_compat_touches_private_parts_of_other_libraries() -> None:
    uses = [
        f"{path.relative_to(ROOT)}:{line}: {code}"
        for path in modules()
        if module_of(path) != "compat"
        for line, code in private_uses(path.read_text())
    ]
    assert not uses


def test_private_uses_are_seen() -> None:
    for code in (
        "torch.ops.aten._flash_attention_forward(q)",
        "torch._dynamo.mark_dynamic(x, 0)",
        "from torch._inductor import config",
        "import torch._dynamo",
        "model.config._attn_implementation = 'eager'",
        "weight._z3_optimizer.step()",
        "getattr(model, '_no_split_modules', None)",
        "linear.__class__ = Other",
        "layer.forward = function",
        "setattr(layer, 'forward', function)",
        "vars(layer)['forward'] = function",
        "deepspeed.ops.__compatible_ops__['x'] = False",
        "def _dynamo(): torch._dynamo.reset()",
    ):
        assert private_uses(code), code
    for code in (
        "self._own = 1; other._own",
        "kind.forward(layer)",
        "type(x).__name__",
        "torch.__version__",
        "super().__init__()",
    ):
        assert not private_uses(code), code
