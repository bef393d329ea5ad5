"""The shape of a decoder, and how many weights of which kind follow from it.

Read from a config.json (a folder, a run, a hub id), or named: `shape:8b`. Mixtures of experts and
models without a gated MLP are refused: their weights are counted in another way.
"""

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from groupwise.errors import ModelError
from groupwise.hub import hub_or_cache
from groupwise.policy.resolve import resolve_model

PREFIX = "shape:"


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with gated MLPs (Llama, Qwen, Mistral, Gemma ...).

    Shape("8b", hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256)
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool = False
    head_dim: int = 0
    """Size of a head (0: hidden / heads)."""
    qkv_bias: bool = False
    qk_norm: bool = False
    family: str = "llama"

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def attention(self) -> int:
        """Numbers of a token's queries."""
        return self.heads * self.head_size

    @property
    def kv(self) -> int:
        """Numbers of a token's keys in a layer; it has as many values."""
        return self.kv_heads * self.head_size

    @property
    def linear_layer(self) -> int:
        """Weights of a layer's matrices, which can be quantised and get adapters."""
        projections = self.hidden * (2 * self.attention + 2 * self.kv)
        return projections + 3 * self.hidden * self.intermediate

    @property
    def layer(self) -> int:
        norms = 2 * self.hidden + (2 * self.head_size if self.qk_norm else 0)
        biases = self.attention + 2 * self.kv if self.qkv_bias else 0
        return self.linear_layer + norms + biases

    @property
    def body(self) -> int:
        """Weights that every token goes through: all layers and the last norm."""
        return self.layers * self.layer + self.hidden

    @property
    def head(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        return self.body + self.head * (1 if self.tied else 2)

    @property
    def rows(self) -> int:
        """Output rows of a layer's matrices: each has a scale in int8."""
        outputs = self.attention + 2 * self.kv + self.hidden
        return outputs + 2 * self.intermediate + self.hidden

    def adapter(self, rank: int, targets: tuple[str, ...] | None = None) -> int:
        """Weights of a LoRA adapter of this rank, on all linear layers or on those named."""
        sizes = {
            "q_proj": (self.hidden, self.attention),
            "k_proj": (self.hidden, self.kv),
            "v_proj": (self.hidden, self.kv),
            "o_proj": (self.attention, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        chosen = [sizes[name] for name in sizes if targets is None or name in targets]
        return self.layers * rank * sum(rows + columns for rows, columns in chosen)

    def flops(self, tokens: float, predicted: float, pairs: float) -> float:
        """Of one forward pass: `predicted` tokens reach the head, `pairs` meet in attention."""
        products = 2 * self.layers * self.linear_layer * tokens + 2 * self.head * predicted
        return products + 4 * self.layers * self.attention * pairs


def _qwen(
    name: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int
) -> Shape:
    tied = vocab == 151_936
    shape = Shape(name, hidden, layers, heads, kv_heads, intermediate, vocab, tied)
    return replace(shape, qkv_bias=True, family="qwen2")


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("tiny", 48, 2, 3, 1, 96, 128, tied=True),
        Shape("135m", 576, 30, 9, 3, 1536, 49_152, tied=True),
        _qwen("0.5b", 896, 24, 14, 2, 4864, 151_936),
        _qwen("1.5b", 1536, 28, 12, 2, 8960, 151_936),
        _qwen("3b", 2048, 36, 16, 2, 11_008, 151_936),
        _qwen("7b", 3584, 28, 28, 4, 18_944, 152_064),
        Shape("8b", 4096, 32, 32, 8, 14_336, 128_256),
        _qwen("14b", 5120, 48, 40, 8, 13_824, 152_064),
        _qwen("32b", 5120, 64, 40, 8, 27_648, 152_064),
        Shape("70b", 8192, 80, 64, 8, 28_672, 128_256),
    )
}
"""SmolLM2-135M, Qwen2.5 and Llama 3 (8b, 70b); tiny is for tests."""


def shape_of(model: str) -> Shape:
    """shape_of("shape:8b"), ("tiny"), ("path/to/model"), ("org/name")"""
    if model.startswith(PREFIX):
        name = model.removeprefix(PREFIX)
        if name not in SHAPES:
            known = ", ".join(PREFIX + known for known in SHAPES)
            raise ModelError(f"there is no {model!r}; there are {known}")
        return SHAPES[name]
    return shape_from_config(model, read_config(resolve_model(model)))


def read_config(source: str) -> Mapping[str, Any]:
    """The config.json of a folder, or of a hub id; of an adapter's folder its model's."""
    folder = pathlib.Path(source)
    path = folder / "config.json"
    if not path.is_file() and (folder / "adapter_config.json").is_file():
        adapter = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return read_config(resolve_model(str(adapter["base_model_name_or_path"])))
    try:
        if not folder.is_dir():
            from huggingface_hub import hf_hub_download

            with hub_or_cache():
                path = pathlib.Path(hf_hub_download(source, "config.json"))
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"cannot read the config.json of {source!r}: {reason}\n"
            f"name a folder, or a shape such as {PREFIX}8b"
        ) from error
    return config.get("text_config") or config


def shape_from_config(name: str, config: Mapping[str, Any]) -> Shape:
    """From transformers' names. What cannot be counted is refused."""
    family = str(config.get("model_type", "unknown"))
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    missing = [key for key in (*needed, "vocab_size") if not isinstance(config.get(key), int)]
    experts = [key for key in config if "expert" in key and config[key]]
    if missing or experts:
        why = f"no {', '.join(missing)}" if missing else "experts"
        raise ModelError(
            f"no plan can be made for {name!r} ({family}): its config.json has {why}; "
            f"name a shape of about its size, such as {PREFIX}8b"
        )
    heads = config["num_attention_heads"]
    return Shape(
        name=name,
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", family.startswith("gemma"))),
        head_dim=config.get("head_dim") or 0,
        qkv_bias=bool(config.get("attention_bias", family == "qwen2")),
        qk_norm=family in ("qwen3", "gemma3_text"),
        family=family,
    )
