"""What a model's folder may ask for, looked at before transformers, PEFT and tokenizers do it.

Its settings are a stranger's: a billion layers, a rank of a million, a pattern that takes for ever
to match, or attention from a repository of somebody else's code.
"""

import json
import math
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from safetensors import safe_open

from groupwise.compat.transformers import tokenizer_part
from groupwise.errors import ModelError, quoted
from groupwise.policy.patterns import why_slow

LAYERS = 10_000
"""The deepest models have some hundreds."""
LABELS = 1_000_000
RANK = 1024
"""An adapter may say as much whatever its weights have."""
GROWTH = 1000
"""How many times longer a tokenizer may make a text before it is split into tokens."""
PATTERN_SECONDS = 5
WORD = 10_000
"""Characters of the longest word that WordPiece looks up: its time is the square of that."""

_COUNT = re.compile(r".*(layers?|experts|blocks|depth|labels)")
_NUMBER_OF = re.compile(r"(^|\.)(num|n)_")
_PLAIN = re.compile(r"[\w.-]*")


def check_settings(source: object, settings: Mapping[str, Any]) -> None:
    """Of a config.json. Raises ModelError."""
    for name, value in _leaves(settings):
        if isinstance(value, int) and _COUNT.fullmatch(name):
            most = LABELS if name.endswith("labels") else LAYERS
            if value > most or (value < 0 and _NUMBER_OF.search(name)):  # others count from the end
                raise ModelError(f"{source} asks for {name}={value}; models have 0 to {most}")
        if "implementation" in name and isinstance(value, str) and "/" in value:
            raise ModelError(
                f"{source} names code on the hub to run ({name}={quoted(value)} in its config), "
                "and groupwise runs no code that comes with a model: delete that setting"
            )


def check_tokenizer(source: object, tokenizer: Any) -> None:
    """Patterns that can take for ever, and texts that grow without limit. Raises ModelError."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        settings = list(_leaves(tokenizer_part(backend, name)))
        for kind, text in settings:
            reason = why_slow(text) if kind.endswith("Regex") else None
            if reason:
                raise ModelError(
                    f"{source} cannot be used: the {name} of its tokenizer has a pattern {reason}: "
                    f"{quoted(text)}"
                )
        longer = math.prod(
            max(1, len(text))
            for kind, text in settings
            if kind.endswith(("content", "prepend")) and isinstance(text, str)
        )
        if longer > GROWTH:
            raise ModelError(
                f"{source} cannot be used: the {name} of its tokenizer may make texts more than "
                f"{GROWTH} times longer"
            )
    word = getattr(getattr(backend, "model", None), "max_input_chars_per_word", 0)
    if word > WORD:
        raise ModelError(
            f"{source} cannot be used: its tokenizer looks up words of {word} characters, and "
            f"takes the square of that for each; at most {WORD} are allowed"
        )


def check_adapter(folder: pathlib.Path, config: str, weights: str, names: Sequence[str]) -> None:
    """Of an adapter in PEFT's format, for a model whose layers have these names."""
    settings = json.loads((folder / config).read_text(encoding="utf-8"))
    with safe_open(folder / weights, framework="pt") as file:
        keys = list(file.keys())
        largest = max((file.get_slice(k).get_shape()[0] for k in keys if "lora_A" in k), default=0)
    ranks, alphas = settings.get("rank_pattern") or {}, settings.get("alpha_pattern") or {}
    for rank in [settings.get("r", 0), *ranks.values()]:
        if rank > max(RANK, largest):
            raise ModelError(f"the adapter in {folder} says rank {rank}, its weights {largest}")
    repeated = settings.get("layer_replication") or ()
    if sum(max(0, end - first) for first, end in repeated) > LAYERS:
        raise ModelError(f"the adapter in {folder} repeats more than {LAYERS} layers")
    layers = settings.get("layers_pattern") or ()
    several = [layers] if isinstance(layers, str) else layers
    single = [settings.get("target_modules"), settings.get("exclude_modules")]
    patterns = [pattern for pattern in (*single, *several) if isinstance(pattern, str)]
    try_patterns([*patterns, *ranks, *alphas], names, f"the adapter in {folder}")


_TRY = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({PATTERN_SECONDS}, {PATTERN_SECONDS}))
patterns, names = json.load(sys.stdin)
for one in patterns:
    for form in (one, rf"(.*\\.)?({{one}})$", rf".*\\.{{one}}$", rf".*\\.{{one}}\\.(\\d+)\\."):
        for name in names:
            re.match(form, name), re.fullmatch(form, name)
"""


def try_patterns(patterns: Iterable[str], names: Sequence[str], whose: str) -> None:
    """Match each with each name, in a process that can be ended; PEFT would do it in this one.

    A pattern that is none is for PEFT to refuse.
    """
    tried = [pattern for pattern in patterns if not _PLAIN.fullmatch(pattern)]
    if not tried:
        return
    command = [sys.executable, "-I", "-S", "-c", _TRY]
    lines = json.dumps([tried, list(names)])
    try:
        done = subprocess.run(
            command, input=lines, text=True, capture_output=True, timeout=3 * PATTERN_SECONDS
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode < 0:
        raise ModelError(
            f"{whose} has a pattern of names that takes longer than {PATTERN_SECONDS} s to match: "
            f"{', '.join(map(quoted, tried))}. List the names instead"
        )


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """("text_config.num_hidden_layers", 30): all values below; those of a list have its name."""
    waiting = [(name, tree)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            path = f"{name}." if name else ""
            waiting += [(f"{path}{key}", below) for key, below in value.items()]
        elif isinstance(value, list):
            waiting += [(name, below) for below in value]
        else:
            yield name, value
