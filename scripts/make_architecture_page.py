"""The layers of the package, and the part of docs/architecture.md that shows them.

    python scripts/make_architecture_page.py     # draws the picture and the table again

A module here is a file or a folder of groupwise/. Each is a layer of its own: it may import from
modules below it and from none above, be it at the top of a file, inside a function or by a name in
a string. tests/test_architecture.py holds the code to this order, and the page to both.
"""

import ast
import pathlib
import re
from functools import cache

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "groupwise"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"

GROUPS: dict[str, dict[str, str]] = {
    "Commands": {
        "__main__": "the command `groupwise`, and `python -m groupwise`",
        "cli": "one thin function per command; torch is imported only where it is used",
        "__init__": "what `import groupwise` offers: `train`, `load_recipe`, `Task`, ...",
    },
    "Tools": {
        "check": "what a recipe will do: a plan on paper, a trial step; the set-up check",
        "explain": "one step with every number, and the same step under another objective",
        "trl": "`GRPOTrainer` and `GRPOConfig` as TRL has them, on our own step and folder",
        "interop": "models as folders; settings to TRL and optimum-neuron, and from TRL",
        "samples": "answers drawn from a model: to read, or in pairs for a preference model",
        "view": "the run viewer: a read-only server over run folders, and its page in `static/`",
    },
    "The loop": {
        "training": "a GRPO step, the loop around it, optimizer, checkpoints, several processes",
        "evaluate": "greedy accuracy, pass@k, maj@k, format",
        "load": "from a config to the parts of a run; the one place that maps names to code",
        "describe": "what a run computes with and where, in words",
    },
    "Sampling": {
        "environments": "tools and games: an answer as a conversation, token exact, over an engine",
        "remote": "over HTTP and in other processes: reference server, sampling workers, vLLM",
        "rollout": "the engine protocol, the native engine and transformers' `generate`",
        "reward_models": "scalar, chain-of-thought and preference models: fit, measure, use",
    },
    "Models": {
        "policy": "load a model, run packed rows through it, adapters, quantization, the reference",
        "distributed": "the processes of a run: how they find each other, talk, start and end",
    },
    "Problems and records": {
        "tasks": "one file per task: problems in three splits, and how to judge an answer",
        "rewards": "reward functions, and the worker that runs them in isolation",
        "answers": "what an answer's text states at its end, and whether that is the right answer",
        "report": "a finished run: in the terminal, on a page, as a model card, beside others",
        "tracking": "the run folder, the console, trackers",
        "diagnose": "what the metrics say is wrong: one pure function per symptom",
    },
    "Settings": {
        "recipe": "YAML, presets, overrides and `--tiny` give a `Config`, or an error with the fix",
        "config": "every setting, one frozen tree",
    },
    "Foundations": {
        "objective": "the algorithm: one file per axis, surrogate and advantage; pure functions",
        "batch": "answers as tensors: a rollout, an optimizer step, a micro-batch; denominators",
        "choice": "a setting that is one of several classes, ours or the user's",
        "hub": "whether the Hugging Face hub answers, asked once; what is cached where it does not",
        "compat": "the only code that uses private parts of other libraries, a file for each",
        "types": "the nouns: `Problem`, `Completion`, `Group`, ...",
        "extensions": "functions and classes from outside: how they are found and marked",
        "secrets": "keys and tokens masked in whatever is shown or stored",
        "errors": "what a user can fix",
    },
}
"""The modules and what each is for, from the top layer to the bottom one, in groups."""

LAYERS = [module for modules in GROUPS.values() for module in modules]


def module_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(source: str) -> set[str]:
    """The modules of groupwise that a source file imports anywhere, or names in a string.

    imports("def f():\\n    from groupwise.batch import Rows") == {"batch"}
    """
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out: from groupwise.x import y"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names += re.findall(r"^groupwise(?:\.\w+)+(?=:\w+$|$)", node.value)
    parts = [name.split(".")[1] for name in names if name.startswith("groupwise.")]
    there = {path.stem for path in PACKAGE.iterdir()}
    return {part if part in there else "__init__" for part in parts}


def uses() -> dict[str, set[str]]:
    """For each module the other modules that its files import."""
    used: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = module_of(path)
        used.setdefault(module, set()).update(imports(path.read_text()) - {module})
    return used


def direct(used: dict[str, set[str]]) -> dict[str, list[str]]:
    """Each module's imports less those that it reaches through another: what a picture can show."""
    reached: dict[str, set[str]] = {}
    shown: dict[str, list[str]] = {}
    for module in reversed([module for module in LAYERS if module in used]):
        through = set().union(*(reached[below] for below in used[module]))
        shown[module] = sorted(used[module] - through, key=LAYERS.index)
        reached[module] = used[module] | through
    return shown


def picture() -> str:
    lines = ["```mermaid", "flowchart TD"]
    for number, (group, modules) in enumerate(GROUPS.items()):
        lines.append(f'    subgraph group{number}["{group}"]')
        lines += [f'        {_node(module)}["{module}"]' for module in modules]
        lines.append("    end")
    shown = direct(uses())
    for module in LAYERS:
        if shown[module]:
            lines.append(f"    {_node(module)} --> {' & '.join(map(_node, shown[module]))}")
    return "\n".join([*lines, "```"])


def _node(module: str) -> str:
    return f"m_{module.strip('_')}"  # some names, such as `end`, mean something to mermaid


def table() -> str:
    lines = ["| | module | what it is for |", "|---|---|---|"]
    for group, modules in GROUPS.items():
        for number, (module, purpose) in enumerate(modules.items()):
            name = f"`{module}/`" if (PACKAGE / module).is_dir() else f"`{module}.py`"
            lines.append(f"| {group if number == 0 else ''} | {name} | {purpose} |")
    return "\n".join(lines)


def page() -> str:
    """The page as it should be: its text, with the picture and the table between the marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n\n{picture()}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
