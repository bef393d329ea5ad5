"""Seeded mutations of values, texts and bytes."""

import copy
import random
from typing import Any

TEXTS = (
    "", " ", "x", "0", "-1", "1e999", ".nan", ".inf", "nan", "null", "true", "~", "[]", "{}", "[",
    "{{", "%s", "!!float x", "!!bool x", "2026-13-45", "0x", "1:30:00", "&a [*a]", "*missing",
    "\0", "\t", "\x1b[2J",
    "é\u0301", "\u202e1", "𝟜", "a" * 3000, "9" * 5000, "../../etc/passwd", "/", "/dev/zero",
    "/dev/stdin", "/nonexistent/x", ".", "file.py:f", "os:system", ":", "a:b:c", "http://",
    "http://me:secret@[::1]:99999/?token=x", "[/red]", "$(id)", "tiny",
    "None", "__class__", "a.b.c=d", "=", "\n", "'", '"', "- ", "#", "<<", "\ufeff",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 0.5, -0.5, 1.5, 1e-320, True, False, None)
HUGE = (2**31, -(2**31), 2**63, 2**64, 10**30, -(10**40), 1e308, -1e308, 5e-324)
TREES: tuple[Any, ...] = (
    [], {}, [[]], [{}], {"": None}, {"kind": "x"}, [None], [1, "x", {}], {"a": {"b": {"c": 1}}},
    [[[[[[[[]]]]]]]],
)  # fmt: skip


def hostile(rng: random.Random, *, huge: bool = True) -> Any:
    """A value that nobody asked for; without `huge` no number that would merely take long."""
    kinds: list[tuple[Any, ...]] = [TEXTS, NUMBERS, TREES, *([HUGE] if huge else [])]
    return copy.deepcopy(rng.choice(rng.choice(kinds)))


def paths_in(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(tree, dict):
        return found + [p for key, value in tree.items() for p in paths_in(value, (*path, key))]
    if isinstance(tree, list):
        return found + [p for i, value in enumerate(tree[:50]) for p in paths_in(value, (*path, i))]
    return found


def mutated_tree(tree: Any, rng: random.Random, times: int = 1, *, huge: bool = True) -> Any:
    """A copy with some values replaced, removed, renamed, repeated or put elsewhere."""
    tree = copy.deepcopy(tree)
    for _ in range(times):
        paths = paths_in(tree)
        if not paths:
            return hostile(rng, huge=huge)
        *parents, last = rng.choice(paths)
        block = tree
        for key in parents:
            block = block[key]
        _mutate(block, last, rng, huge)
    return tree


def _mutate(block: Any, key: Any, rng: random.Random, huge: bool) -> None:
    action = rng.choice(("set", "set", "set", "set", "delete", "rename", "wrap", "add", "near"))
    if action == "set":
        block[key] = hostile(rng, huge=huge)
    elif action == "wrap":
        block[key] = rng.choice(([block[key]], {"kind": block[key]}, str(block[key])))
    elif action == "near" and isinstance(block[key], int | float):
        block[key] = rng.choice((-block[key], block[key] + 1, block[key] / 2, str(block[key])))
    elif isinstance(block, list):
        if action == "delete":
            del block[key]
        else:
            block.insert(key, copy.deepcopy(block[key]))
    elif action == "delete":
        del block[key]
    elif action == "rename":
        block[mutated_text(str(key), rng)] = block.pop(key)
    else:
        block[rng.choice(("kind", "x", "preset", "name", ""))] = hostile(rng, huge=huge)


def mutated_text(text: str, rng: random.Random, times: int = 1) -> str:
    for _ in range(times):
        at, length = rng.randint(0, len(text)), rng.randint(0, 12)
        action = rng.choice(("insert", "insert", "delete", "repeat", "cut", "swap"))
        if action == "insert":
            text = text[:at] + rng.choice(TEXTS)[:200] + text[at:]
        elif action == "delete":
            text = text[:at] + text[at + length :]
        elif action == "repeat":
            text = text[: at + length] + text[at:]
        elif action == "cut":
            text = text[:at]
        elif at < len(text):
            text = text[:at] + chr(rng.randint(1, 0x2FF)) + text[at + 1 :]
    return text


def mutated_bytes(data: bytes, rng: random.Random, times: int = 1) -> bytes:
    changed = bytearray(data)
    for _ in range(times):
        at = rng.randint(0, max(0, len(changed) - 1))
        action = rng.choice(("flip", "flip", "flip", "cut", "insert", "zero"))
        if action == "cut":
            del changed[at:]
        elif action == "insert":
            changed[at:at] = rng.randbytes(rng.randint(1, 64))
        elif action == "zero":
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        elif changed:
            changed[at] ^= 1 << rng.randint(0, 7)
    return bytes(changed)
