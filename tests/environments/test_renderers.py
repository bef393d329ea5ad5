"""Conversations by `renderers`: chosen by proof, token exact, and calls in the family's own form.

Tokenizers of the families need the hub. What their renderers need of one is its special tokens and
any encoding of text, so the embedded model's tokenizer stands in, with the family's tokens added.
"""

import functools
import sys
from typing import Any

import pytest
from transformers import AutoTokenizer

from environments.scripted import LIMITS
from environments.templates import ADD, FOLDER, NAMES, TINY
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.chat import SENTINEL, TemplateChat, assistant_turn
from groupwise.environments.groups import Episodes
from groupwise.environments.renderers_chat import (
    NEEDS_DOWNLOAD,
    TURN_MARKS,
    RenderersChat,
    template_chat,
)
from groupwise.errors import ConfigError, ModelError

renderers = pytest.importorskip("renderers")

QUESTION = {"role": "user", "content": "What is 3+4?"}
REPLY = {"role": "tool", "name": "add", "content": "7", "tool_call_id": "call00000"}
WRITTEN_BY = {
    "diffusion_gemma": "gemma4", "diffusion_gemma_training": "gemma4", "gemma4": "gemma4",
    "gemma4_v3": "gemma4", "gemma4_v4": "gemma4", "gemma4_v5": "gemma4",
    "glm4moe": "glm-4.5", "glm4moe_training": "glm-4.5", "llama3_1": "llama-3",
    **{f"nemotron_3_{name}": "nemotron-3" for name in (
        "5_lightning", "5_lightning_training", "nano", "nano_training", "super", "super_training",
        "ultra", "ultra_training",
    )},
    "qwen3": "qwen3", "qwen3_5_think": "qwen3.5", "qwen3_6": "qwen3.5",
    "qwen3_8": "qwen3.8", "qwen3_8_training": "qwen3.8",
    "qwen3_instruct_2507": "qwen3-vl", "qwen3_instruct_2507_training": "qwen3-vl",
    "qwen3_vl": "qwen3-vl", "qwen3_vl_training": "qwen3-vl",
}  # fmt: skip
"""The templates that a renderer writes, token by token, with tools, replies and thinking."""


class Recorder:
    """Takes note of the special tokens that a renderer asks for."""

    name_or_path, chat_template, unk_token_id, eos_token_id = "", "", None, 0

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ids.setdefault(token, len(self.ids) + 1)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [self.convert_tokens_to_ids(text)]


@functools.cache
def special_tokens(family: str) -> tuple[str, ...]:
    recorder = Recorder()
    renderers.create_renderer(recorder, renderers.config_from_name(family))
    return tuple(recorder.ids)


def families() -> list[str]:
    from renderers.base import MODEL_RENDERER_MAP

    return [f for f in dict.fromkeys(MODEL_RENDERER_MAP.values()) if f not in NEEDS_DOWNLOAD]


@functools.cache
def tokenizer_of(name: str) -> Any:
    """With a template, and the tokens of the family that writes it (else of all ChatML ones)."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.model_max_length = 10**9
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()
    tokens = special_tokens(WRITTEN_BY.get(name, "qwen3.5"))
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    for start in ("<|begin_of_text|>", "<bos>"):
        if start in tokens:
            tokenizer.bos_token = start
    return tokenizer


@functools.cache
def chat_of(name: str) -> RenderersChat:
    chat = template_chat(tokenizer_of(name), (), (ADD,))
    assert isinstance(chat, RenderersChat)
    eos = chat.renderer.get_stop_token_ids()
    return RenderersChat(chat.tokenizer, eos, chat.renderer, chat.family, (ADD,))


@pytest.mark.parametrize("name", WRITTEN_BY)
def test_a_family_is_found_by_what_its_template_writes(name: str) -> None:
    assert chat_of(name).family == WRITTEN_BY[name]


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WRITTEN_BY)))
def test_other_templates_are_left_to_the_template(name: str) -> None:
    assert type(template_chat(tokenizer_of(name), (), (ADD,))) is TemplateChat


@pytest.mark.parametrize("family", families())
def test_every_family_has_a_mark_that_is_looked_for(family: str) -> None:
    tokens = " ".join(special_tokens(family))
    assert any(mark in tokens for mark in TURN_MARKS)


def test_a_renderer_that_needs_the_hub_is_named() -> None:
    """If this fails, gpt-oss can be had offline, and belongs into the tests above."""
    with pytest.raises(Exception, match="vocab"):
        renderers.create_renderer(Recorder(), renderers.config_from_name("gpt-oss"))


@pytest.mark.parametrize("name", WRITTEN_BY)
def test_a_call_is_read_answered_and_gone_on_from_token_by_token(name: str) -> None:
    """What the family's template writes as a call is read as one, and the next prompt is what is
    held and the rest of what the template writes behind it."""
    chat = chat_of(name)
    turn = assistant_turn("", [REPLY])
    turn["tool_calls"][0]["function"]["arguments"] = {"a": 3, "b": 4}
    whole = chat.opening([QUESTION, turn, REPLY], (ADD,))
    begins = chat._last_turn(chat.opening([QUESTION], (ADD,)))
    assert begins is not None
    ends = next(n for n, t in enumerate(whole) if n >= begins and t in chat.eos_texts) + 1
    held = whole[:ends]
    read = chat.parse(chat.tokenizer.decode(list(held[begins : ends - 1])), "eos")
    (call,) = read.calls
    assert (call.name, dict(call.arguments), call.error) == ("add", {"a": 3, "b": 4}, "")
    following = chat.extend(held, [QUESTION, turn], [REPLY], (ADD,))
    assert following.broken is None
    assert following.tokens == whole


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "gemma4", "llama3_1"])
def test_sampled_tokens_are_never_tokenized_again(name: str) -> None:
    """A turn in single letters, which no tokenizer would write, cut off before its end."""
    chat = chat_of(name)
    odd = tuple(t for letter in "seven" for t in chat._tokens(letter))
    held = (*chat.opening([QUESTION], (ADD,)), *odd)
    following = chat.extend(held, [QUESTION, assistant_turn("seven", [])], [REPLY], (ADD,))
    assert following.broken is None and following.tokens[: len(held)] == held
    assert "7" in chat.tokenizer.decode(list(following.tokens[len(held) :]))


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "gemma4", "llama3_1", "qwen3_8"])
@pytest.mark.parametrize(
    "text", ["", "<tool_call>", "<tool_call>add", "<tool_call>{}</tool_call>", "</think>", "\x00{"]
)
def test_nothing_that_a_model_writes_ends_a_run(name: str, text: str) -> None:
    turn = chat_of(name).parse(text, "eos")
    assert all(call.error or isinstance(call.arguments, dict) for call in turn.calls)
    assert [call.name for call in turn.calls if not call.error] == []


def test_thoughts_stay_in_the_text_and_calls_in_them_are_not_made() -> None:
    thought = '<think>\n<tool_call>{"name": "add", "arguments": {}}</tool_call>\n</think>\n\nNo.'
    turn = chat_of("qwen3").parse(thought, "eos")
    assert turn.calls == () and turn.text == thought


def test_a_template_that_drops_thinking_still_splits_the_episode() -> None:
    chat = chat_of("qwen3")
    held = (*chat.opening([QUESTION], ()), *chat._tokens(f"<think>\nhm\n</think>\n\n{SENTINEL}"))
    turn = assistant_turn(f"<think>\nhm\n</think>\n\n{SENTINEL}", [])
    following = chat.extend(held, [QUESTION, turn], [QUESTION], ())
    assert following.broken is not None and "hm" not in chat.tokenizer.decode(following.tokens)


def test_episodes_use_it_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = EnvironmentFactory("e", lambda problem: None, tools=(ADD,))  # type: ignore[arg-type]
    tokenizer = tokenizer_of("qwen3")
    ours = Episodes(factory, tokenizer, (2,), LIMITS)
    assert ours.continued_by == "renderers (qwen3)"
    told = Episodes(factory, tokenizer, (2,), LIMITS, chat="template")
    assert told.continued_by == "the chat template"
    with pytest.raises(ModelError, match="no renderer writes"):
        Episodes(factory, AutoTokenizer.from_pretrained(TINY), (2,), LIMITS, chat="renderers")
    monkeypatch.setitem(sys.modules, "renderers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Episodes(factory, tokenizer, (2,), LIMITS).continued_by == "the chat template"
    with pytest.raises(ConfigError, match=r"pip install 'groupwise\[renderers\]'"):
        Episodes(factory, tokenizer, (2,), LIMITS, chat="renderers")
