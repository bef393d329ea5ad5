"""Mutated recipes, overrides, data files, run folders, model folders and chat templates.

A case is a folder (empty, a finished run, a model), edits of it, and a command in it.
"""

import base64
import gzip
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
from typing import Any

import yaml

from attack.case import Case, Outcome
from attack.isolated import Ended, isolated
from attack.mutate import TEXTS, hostile, mutated_bytes, mutated_text, mutated_tree
from groupwise.config import Config
from groupwise.config.flat import leaves
from groupwise.recipe import list_recipes

LIMIT = 60.0
"""Seconds after which a command counts as hung; the slowest honest one takes some five."""
SMALL = (
    "steps=3", "device=cpu", "task.train_size=64", "task.test_size=8", "batch.prompts=3",
    "batch.group_size=4", "rollout.max_prompt_tokens=64", "rollout.max_completion_tokens=16",
    "eval.problems=4", "eval.k=2", "checkpoint.every=1", "tracking.tensorboard=false",
    "optimizer.lr=1e-3",
)  # fmt: skip
TINY = pathlib.Path(sys.modules["groupwise"].__path__[0]) / "policy" / "tiny"
BASES = pathlib.Path(tempfile.gettempdir()) / f"groupwise-attack-{os.getuid()}"
"""What cases begin with, made once for each state of the package."""


def run_command(words: list[str], folder: pathlib.Path) -> None:
    """`groupwise WORDS` in a folder, as the command line has it; ends with SystemExit."""
    from groupwise.__main__ import main

    os.chdir(folder)
    sys.argv = ["groupwise", *words]
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    main()


def base(name: str, root: pathlib.Path) -> pathlib.Path:
    """The folder that a case begins with; `run` is made by training when it is first asked for."""
    path = root / name
    if not path.exists():
        aside = root / f"{name}.new"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        if name == "model":
            shutil.copytree(TINY, aside / "model")
        if name == "run":
            words = ["train", *SMALL, "--out", "run", "--quiet"]
            ended = isolated(lambda: run_command(words, aside), LIMIT)
            assert ended.code == 0, ended.output
        aside.rename(path)
    return path


def edited(folder: pathlib.Path, edits: list[list[Any]]) -> None:
    for action, name, *rest in edits:
        path = folder / name
        if action in ("delete", "folder", "fifo", "link") and path.is_dir():
            shutil.rmtree(path)
        elif action in ("delete", "folder", "fifo", "link"):
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        if action == "write":
            path.write_bytes(rest[0].encode(errors="surrogateescape"))
        elif action == "bytes":
            path.write_bytes(base64.b64decode(rest[0]))
        elif action == "gzip":
            path.write_bytes(gzip.compress(rest[0].encode(errors="surrogateescape")))
        elif action == "mutate" and path.is_file():
            data = mutated_bytes(path.read_bytes(), random.Random(rest[0]), rest[1])
            path.unlink()  # hard links share their bytes
            path.write_bytes(data)
        elif action == "folder":
            path.mkdir()
        elif action == "fifo":
            os.mkfifo(path)
        elif action == "link":
            path.symlink_to(rest[0])


def run(case: Case, root: pathlib.Path) -> Outcome:
    inputs = case.inputs
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder = pathlib.Path(name)
        shutil.copytree(base(inputs["base"], root), folder, dirs_exist_ok=True)
        edited(folder, inputs["edits"])
        ended = isolated(lambda: run_command(inputs["words"], folder), LIMIT)
    return judged(ended)


def judged(ended: Ended, good: tuple[int, ...] = (0, 2)) -> Outcome:
    """What a command's end says. Exit code 1 is a finding of `bench` only where it says so."""
    text = ended.output
    if ended.hung:
        return Outcome("hang", text)
    if ended.orphans:
        return Outcome("orphan", "\n".join(ended.orphans))
    found = ended.code == 1 and "show a flaw" in text
    if "Traceback (most recent call last)" in text or not (ended.code in good or found):
        return Outcome("traceback", f"exit code {ended.code}\n{text}")
    return Outcome("accepted" if ended.code != 2 else "refused", text)


def make(kind: str, rng: random.Random, root: pathlib.Path) -> Case:
    """A case of one of these kinds."""
    name, edits, words = MAKERS[kind](rng, root)
    return Case(kind, {"base": name, "edits": edits, "words": words})


Made = tuple[str, list[list[Any]], list[str]]


def _recipe(rng: random.Random, root: pathlib.Path) -> Made:
    slow = rng.random() < 0.06
    source = rng.choice(list(list_recipes().values())).read_text()
    way = rng.random()
    if way < 0.6:
        tree = mutated_tree(yaml.safe_load(source), rng, rng.randint(1, 3), huge=not slow)
        text = yaml.safe_dump(tree, allow_unicode=True)
    elif way < 0.9:
        text = mutated_text(source, rng, rng.randint(1, 4))
    else:
        text = rng.choice(BOMBS)
    edit = ["write", "recipe.yaml", text]
    if rng.random() < 0.05:
        raw = mutated_bytes(source.encode(), rng, 5)
        edit = ["bytes", "recipe.yaml", base64.b64encode(raw).decode()]
    commands = [["check", "recipe.yaml", "--dry"], ["check", "recipe.yaml", "--dry", "--tiny"]]
    if slow:
        commands = [
            ["train", "recipe.yaml", "--tiny", "--quiet", "--out", "out"],
            ["reward", "bench", "recipe.yaml", "--tiny"],
            ["explain", "recipe.yaml", "--tiny"],
            ["check", "recipe.yaml", "--tiny"],
            ["import", "recipe.yaml", "--out", "other.yaml"],
        ]
    return "empty", [edit], rng.choice(commands)


BOMBS = (
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + "".join(
        f"{chr(100 + i)}: &{chr(100 + i)} [*{chr(99 + i)}, *{chr(99 + i)}]\n" for i in range(20)
    ),
    "[" * 5000, "{a: " * 3000, "steps: " + "9" * 5000, "task: &t\n  kind: *t\n", "? [a]\n: b\n",
    "steps: 1\nsteps: 2\n", "<<: {steps: 1}\n", "%YAML 9.9\n---\nsteps: 1\n", "--- a\n--- b\n",
    "!!python/object/apply:os.system [id]\n",
    "presets: [1]\n", "tiny: x\n", "presets: {a: {b: c}}\n", "\ufeffsteps: 2\n", "- steps: 1\n",
    "steps\n",
)  # fmt: skip
SETTINGS = sorted(leaves(Config().model_dump(mode="json")))


def _override(rng: random.Random, root: pathlib.Path) -> Made:
    def value() -> str:
        found = hostile(rng)
        return found if isinstance(found, str) else json.dumps(found)

    words = []
    for _ in range(rng.randint(1, 4)):
        key = rng.choice(SETTINGS)
        if rng.random() < 0.3:
            key = key.rsplit(".", rng.randint(1, 2))[0]
        if rng.random() < 0.2:
            key = mutated_text(key, rng)
        words.append(f"{key}={value()}")
    words = [word.replace("\0", "\\0") for word in words]  # a command line has no NUL
    recipe = rng.choice([*list_recipes(), "demo", "demo", mutated_text("demo", rng)])
    options = rng.choice(([], [], ["--tiny"], ["--gpus", "4"], ["--preset", rng.choice(TEXTS)]))
    return "empty", [], ["check", recipe.replace("\0", ""), *words, "--dry", *options]


def _data(rng: random.Random, root: pathlib.Path) -> Made:
    rows: list[Any] = [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "level": i} for i in range(12)]
    if rng.random() < 0.3:
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    rows = mutated_tree(rows, rng, rng.randint(1, 6))
    lines = [json.dumps(row) for row in rows] if isinstance(rows, list) else [json.dumps(rows)]
    text = "\n".join(lines) if rng.random() < 0.85 else json.dumps(rows)
    if rng.random() < 0.4:
        text = mutated_text(text, rng, rng.randint(1, 5))
    name = rng.choice(("data.jsonl", "data.jsonl", "data.json", "folder/train.jsonl"))
    edit: list[Any] = ["write", name, text]
    if rng.random() < 0.1:
        raw = mutated_bytes(text.encode(errors="replace"), rng, 4)
        edit = ["bytes", name, base64.b64encode(raw).decode()]
    kind = rng.choice(("jsonl", "jsonl", "jsonl", "gsm8k", "math", "countdown", "aqua_rat"))
    path = name.partition("/")[0] if kind == "jsonl" or "/" in name else "."
    words = ["eval", "tiny", "--task", kind, "--data", path, "--limit", "1", "--k", "1"]
    return "empty", [edit], [*words, "rollout.max_completion_tokens=4", "device=cpu"]


def _files(folder: pathlib.Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _damage(name: str, folder: pathlib.Path, rng: random.Random) -> list[Any]:
    """One edit of a file, by what it holds."""
    action = rng.random()
    if action < 0.12:
        return [rng.choice(("delete", "folder", "fifo")), name]
    if action < 0.18:
        return ["link", name, rng.choice((pathlib.Path(name).name, "/dev/zero", "/", "nowhere"))]
    if action < 0.24:
        return ["write", name, rng.choice(TEXTS)]
    path = folder / name
    if path.suffix in (".safetensors", ".png") or action < 0.35:
        return ["mutate", name, rng.randrange(2**31), rng.randint(1, 8)]
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    form = "gzip" if path.suffix == ".gz" else "write"
    if ".jsonl" in path.name:
        lines = text.splitlines() or [""]
        at = rng.randrange(len(lines))
        lines[at] = _changed_json(lines[at], rng)
        return [form, name, "\n".join(lines) + "\n"]
    if path.suffix == ".json":
        return [form, name, _changed_json(text, rng)]
    if path.suffix == ".yaml" and rng.random() < 0.7:
        return [form, name, yaml.safe_dump(mutated_tree(yaml.safe_load(text), rng, 2))]
    return [form, name, mutated_text(text, rng, rng.randint(1, 4))]


def _changed_json(text: str, rng: random.Random) -> str:
    if not text.strip() or rng.random() < 0.25:
        return mutated_text(text, rng, 2)
    return json.dumps(mutated_tree(json.loads(text), rng, rng.randint(1, 3)))


def _run_folder(rng: random.Random, root: pathlib.Path) -> Made:
    folder = base("run", root)
    files = _files(folder)
    light = [name for name in files if "/model" not in name and "/best" not in name]
    chosen = [rng.choice(light if rng.random() < 0.8 else files) for _ in range(rng.randint(1, 3))]
    edits = [_damage(name, folder, rng) for name in dict.fromkeys(chosen)]
    again = ["train", *SMALL, "--out", "run", "--quiet"]
    words = rng.choice(
        [["report", "run"], ["compare", "run"], ["compare", "run", "run"],
         ["explain", "run", "--stored"], ["replay", "run", "--stored", "--set", "algorithm=dapo"],
         ["explain", "run", "--step", "2", "--stored", "--html", "step.html"],
         ["export", "run", "--out", "other"], ["export", "run", "--to", "trl", "--out", "s.py"],
         ["sample", "run", "--n", "1"], ["eval", "run", "--limit", "1", "--k", "1"],
         ["reward", "eval", "run/model", "run"], again, [*again, "--restart"]]
    )  # fmt: skip
    if again == words and rng.random() < 0.7:
        edits.append(["delete", "run/summary.json"])
    return "run", edits, words


def _model(rng: random.Random, root: pathlib.Path) -> Made:
    folder = base("model", root)
    files = [name for name in _files(folder) if not name.endswith(".md")]
    chosen = [rng.choice(files) for _ in range(rng.randint(1, 2))]
    edits = [_damage(name, folder, rng) for name in dict.fromkeys(chosen)]
    if rng.random() < 0.2:
        name, changes = rng.choice(DEMANDS)
        settings = json.loads((folder / "model" / name).read_text())
        edits = [["write", f"model/{name}", json.dumps({**settings, **changes})]]
    return "model", edits, _model_words(rng)


_ENDLESS = {"type": "Split", "behavior": "Isolated", "invert": False,
            "pattern": {"Regex": r"((\w|\d|.)*)*!"}}  # fmt: skip
_SQUARE = {**_ENDLESS, "pattern": {"Regex": r"\w+(?=!)"}}
_STRIPS = {"type": "Strip", "content": "3", "start": 0, "stop": 9}  # it panics on "3"
_WORDS = {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
          "max_input_chars_per_word": 10**9, "vocab": {"?": 0, "a": 1}}  # fmt: skip
_LONG = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 20}
_NOTHING = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}
_FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_NO_SECOND = {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
              "single": [{"Sequence": {"id": "B", "type_id": 0}}]}  # fmt: skip
DEMANDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("config.json", {"num_hidden_layers": 10**8}), ("config.json", {"num_hidden_layers": 10**5}),
    ("config.json", {"num_labels": 10**9}), ("config.json", {"hidden_size": 10**9}),
    ("config.json", {"_attn_implementation": "somebody/kernel"}),
    ("config.json", {"auto_map": {"AutoModelForCausalLM": "code.Model"}, "model_type": "own"}),
    ("config.json", {"quantization_config": _FOUR_BITS}),
    ("tokenizer.json", {"pre_tokenizer": _ENDLESS}), ("tokenizer.json", {"normalizer": _LONG}),
    ("tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": [_LONG] * 9}}),
    ("tokenizer.json", {"normalizer": _NOTHING}),
    ("tokenizer.json", {"post_processor": _NO_SECOND}), ("tokenizer.json", {"decoder": _STRIPS}),
    ("tokenizer.json", {"pre_tokenizer": _SQUARE}), ("tokenizer.json", {"model": _WORDS}),
    ("tokenizer.json", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}),
    ("generation_config.json", {"eos_token_id": ["a"]}),
    ("generation_config.json", {"eos_token_id": list(range(10**5))}),
)  # fmt: skip
"""What a folder's settings may ask for that mutations of them hardly ever do."""


def _model_words(rng: random.Random) -> list[str]:
    few = ["rollout.max_completion_tokens=4", "device=cpu"]
    return rng.choice(
        (["sample", "model", "3+4=", "--n", "1"],
         ["eval", "model", "--task", "arithmetic", "--limit", "1", "--k", "1", *few],
         ["export", "model", "--out", "other"])
    )  # fmt: skip


EXPRESSIONS = (
    "{{ 1/0 }}", "{{ 9**9**9 }}", "{{ 'x' * 10**9 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ self.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ raise_exception('no') }}", "{{ messages[99].content }}", "{{ undefined.attribute.more }}",
    "{{ messages | map('nope') }}", "{% include 'x' %}", "{% import 'os' as o %}",
    "{{ lipsum(n=10**6) }}", "{{ messages.append(1) }}",
    "{% set _ = messages[0].update({'a': 1}) %}", "{{ strftime_now('%s' * 100000) }}",
    "{{ tojson(messages) }}", "{{ messages | tojson(indent=10**6) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x'.center(10**9) }}",
    "{{ '%*d' % (10**9, 1) }}", "{{ '{:999999999}'.format(1) }}", "{{ [1] * 10**9 }}",
    "{% generation %}x", "{% break %}", "{{", "{% if %}", "{{ messages | length / 0 }}",
    "{{ none + 1 }}",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ range(10**12) | list }}", "{{ messages | batch(0) | list }}",
    "{{ ('x' * 50000) | wordwrap(1) | replace('x', 'x' * 10000) }}", "{{ 'a' | indent(10**9) }}",
    "{{ dict(a=1).pop('b') }}", "{% set n = 9999999 %}{{ [1] * n * 999 }}",
    "{% set n = namespace(x='x') %}{% for i in range(40) %}{% set n.x = n.x * 9 %}{% endfor %}",
    "{{ '%9999999999d' % 1 }}", "{{ '%*d' % (9999999, 1) }}", "{{ '{:{}}'.format(1, 9999999) }}",
    *(
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = " + grown + " %}"
        "{% endfor %}{{ n.x }}{{ n.x | tojson }}"
        for grown in ("n.x + n.x", "n.x ~ n.x", "[n.x, n.x]", "[n.x, n.x] | join",
                      "[n.x] | batch(2) | list", "'%s%s' % (n.x, n.x)", "'{0}{0}'.format(n.x)",
                      "n.x | replace('x', 'xx')", "n.x.replace('x', 'xx')", "n.x | indent(999)",
                      "''.join([n.x, n.x])", "dict(a=n.x, b=n.x)", "n.x | list + n.x | list")
    ),
)  # fmt: skip


def _template(rng: random.Random, root: pathlib.Path) -> Made:
    source = (TINY / "chat_template.jinja").read_text()
    way = rng.random()
    if way < 0.5:
        at = rng.randint(0, len(source))
        text = rng.choice((source[:at] + rng.choice(EXPRESSIONS) + source[at:],
                           rng.choice(EXPRESSIONS) + source))  # fmt: skip
    elif way < 0.6:
        text = "".join(rng.choice(EXPRESSIONS) for _ in range(2))
    else:
        text = mutated_text(source, rng, rng.randint(1, 5))
    return "model", [["write", "model/chat_template.jinja", text]], _model_words(rng)[:6]


MAKERS = {
    "recipes": _recipe,
    "overrides": _override,
    "data": _data,
    "runs": _run_folder,
    "models": _model,
    "templates": _template,
}
