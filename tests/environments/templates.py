"""Chat templates of real model families, as TRL ships them, on the embedded model's tokenizer."""

import functools
import pathlib
from typing import Any

import trl
from transformers import AutoTokenizer

import groupwise
from groupwise.environments.base import ToolSpec
from groupwise.environments.chat import TemplateChat

FOLDER = pathlib.Path(trl.__file__).parent / "chat_templates"
TINY = pathlib.Path(groupwise.__file__).parent / "policy" / "tiny"
IMAGES_ONLY = {"idefics3", "llava_next", "smolvlm"}
"""Their messages are lists of parts, which text conversations are not."""

NAMES = sorted(
    path.stem
    for path in FOLDER.glob("*.jinja")
    if path.stem.removesuffix("_training") not in IMAGES_ONLY
)
ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|observation|>",
    "<|user|>",
)

ADD = ToolSpec(
    "add",
    "Adds two integers.",
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "One."},
            "b": {"type": "integer", "description": "Another."},
        },
        "required": ["a", "b"],
    },
)


@functools.cache
def tokenizer_of(name: str) -> Any:
    """With the family's template, and the tokens that it ends turns with."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.model_max_length = 10**9
    if name != "tiny":
        tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()
        tokenizer.add_special_tokens({"additional_special_tokens": list(ends_of(tokenizer))})
    return tokenizer


def ends_of(tokenizer: Any) -> tuple[str, ...]:
    return tuple(end for end in ENDS if end in tokenizer.chat_template)


@functools.cache
def chat_of(name: str) -> TemplateChat:
    tokenizer = tokenizer_of(name)
    ends = [tokenizer.convert_tokens_to_ids(end) for end in ends_of(tokenizer)]
    return TemplateChat(tokenizer, (*ends, tokenizer.eos_token_id))


def rendered(name: str, messages: list[Any], tools: tuple[ToolSpec, ...] = ()) -> str:
    return tokenizer_of(name).apply_chat_template(
        messages,
        tools=[tool.schema for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
