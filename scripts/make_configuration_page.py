"""Write docs/configuration.md from the docstrings in groupwise/config/: python THIS_FILE"""

import ast
import inspect
import itertools
import pathlib
import textwrap

from pydantic import BaseModel

from groupwise.choice import FromFile
from groupwise.config import Config
from groupwise.config.validation import models_in

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "configuration.md"
INTRODUCTION = """# Configuration

Every setting, its default and what it does. A recipe is a YAML file of these; on the command line
they are written `key.sub=value`. Made from `groupwise/config/` by
`scripts/make_configuration_page.py`.
"""


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the string below it. pydantic can read them too, but whenever a class is made."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not base.__module__.startswith("groupwise."):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in itertools.pairwise([*tree.body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = ""
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    text = " ".join(str(below.value.value).split())  # one table row
                found[field.target.id] = text
    return found


def section(title: str, model: type[BaseModel]) -> str:
    lines = [f"\n## {title}\n", f"{(model.__doc__ or '').strip()}\n"]
    lines += ["| setting | default | |", "|---|---|---|"]
    described = descriptions(model)
    for name, field in model.model_fields.items():
        if not models_in(field.annotation):
            default = "required"
            if not field.is_required():
                default = f"`{field.get_default(call_default_factory=True)!r}`"
            text = described.get(name, "").replace("|", "\\|")
            lines.append(f"| `{name}` | {default} | {text} |")
    return "\n".join(lines)


def blocks(name: str, annotation: object) -> list[str]:
    """A section for each block of settings, and after it those of the blocks inside."""
    models = [model for model in models_in(annotation) if not issubclass(model, FromFile)]
    parts: list[str] = []
    for model in models:
        several = len(models) > 1 and "kind" in model.model_fields
        title = f"{name}: {model.model_fields['kind'].default}" if several else name
        parts.append(section(title, model))
        for inner, field in model.model_fields.items():
            parts += blocks(f"{name}.{inner}", field.annotation)
    return parts


def page() -> str:
    parts = [INTRODUCTION, section("the run", Config)]
    for name, field in Config.model_fields.items():
        parts += blocks(name, field.annotation)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
