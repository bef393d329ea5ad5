"""Tokens that are held stay as they are: no template, no text and no tokenizer changes them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.templates import ADD, NAMES, chat_of, rendered, tokenizer_of
from groupwise.environments.chat import OPENINGS, PlainChat, TemplateChat
from groupwise.errors import ModelError

QUESTION = {"role": "user", "content": "What is 3+4?"}
DROPS_THINKING = {
    "qwen3": ("user reply, thinking",),
    "deepseek_r1_distill": (
        "user reply",
        "user reply, thinking",
        "tool reply",
        "tool reply, thinking",
    ),
    "glm4moe": ("user reply, thinking",),
    "lfm2_2_5": ("user reply, thinking",),
    "qwen3_5_think": ("user reply", "user reply, thinking"),
}
KEEPS_ALL = ("tiny", "qwen2_5", "llama3", "gemma3", "phi3", "gptoss", "qwen3_training", "qwen3_8")


def test_a_group_opens_with_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, rendered = TemplateChat(tokenizer_of("tiny"), ()), []
    monkeypatch.setattr(chat, "_render", lambda *given: rendered.append(given) or "text")
    other = {"role": "user", "content": "What is 3+5?"}
    openings = [chat.opening([message], ()) for message in (QUESTION, QUESTION, other)]
    assert len(rendered) == 2
    assert openings[0] == openings[1]
    for number in range(OPENINGS):
        chat.opening([{"role": "user", "content": str(number)}], ())
    assert len(chat._openings) == OPENINGS


def turn_tokens(name: str, text: str, reply: Any) -> tuple[int, ...]:
    """A turn that ends as the template ends turns before such a reply."""
    chat = chat_of(name)
    suffix = chat._tokens(chat._suffix([reply], ()))
    end = [suffix[0]] if suffix[0] in chat.eos_texts else []
    return (*tokenizer_of(name)(text, add_special_tokens=False)["input_ids"], *end)


@pytest.mark.parametrize("name", ["tiny", *NAMES])
def test_what_is_appended_is_what_the_template_writes(name: str) -> None:
    """Three turns: the tokens held spell what it renders, and grow unless it rewrites the past."""
    chat, tokenizer = chat_of(name), tokenizer_of(name)
    broken = chat.broken("user", False, ())
    messages: list[Any] = [QUESTION]
    held, suffix = chat.opening(messages, ()), ()
    for number in range(3):
        text = f"Let me see {number}"
        reply = {"role": "user", "content": f"No {number}"}
        held = (*held, *turn_tokens(name, text, reply))
        messages.append({"role": "assistant", "content": text})
        following = chat.extend(held, messages, [reply], ())
        assert following.broken == broken
        assert broken is not None or following.tokens[: len(held)] == held
        messages.append(reply)
        suffix, held = following.tokens[len(held) :], following.tokens
    two = [QUESTION, {"role": "assistant", "content": "turn"}, QUESTION]
    if broken is not None or rendered(name, two).startswith(rendered(name, two[:1]) + "turn"):
        assert tokenizer.decode(list(held)) == rendered(name, messages)
    else:  # a template that adds something, such as an empty thought, to the turns of the past
        assert rendered(name, messages).endswith(tokenizer.decode(list(suffix)))


@pytest.mark.parametrize("name", ["tiny", *NAMES])
def test_a_tool_s_reply_is_appended_as_the_template_writes_it(name: str) -> None:
    chat, tokenizer = chat_of(name), tokenizer_of(name)
    tools = (ADD,)
    chat.prove(tools)
    call = {"id": "call00000", "type": "function"}
    call["function"] = {"name": "add", "arguments": {"a": 3, "b": 4}}  # type: ignore[assignment]
    turn = {"role": "assistant", "content": "Adding.", "tool_calls": [call]}
    reply = {"role": "tool", "name": "add", "content": "seven", "tool_call_id": "call00000"}
    held = (*chat.opening([QUESTION], tools), 50, 51, 52)
    following = chat.extend(held, [QUESTION, turn], [reply], tools)
    if following.broken is not None:
        whole = tokenizer.decode(list(following.tokens))
        assert "seven" in whole and not whole.startswith(tokenizer.decode(list(held)))
        return
    assert following.tokens[: len(held)] == held
    suffix = tokenizer.decode(list(following.tokens[len(held) :]))
    assert "seven" in suffix
    if chat._tool_form[tools] == "calls":
        assert rendered(name, [QUESTION, turn, reply], tools).endswith(suffix)


@pytest.mark.parametrize("name", ["tiny", *NAMES])
def test_tools_are_shown_to_the_model_by_every_template(name: str) -> None:
    chat, tokenizer = chat_of(name), tokenizer_of(name)
    text = tokenizer.decode(list(chat.opening([QUESTION], (ADD,))))
    assert "add" in text and "What is 3+4?" in text and "Another." in text


def test_sampled_tokens_are_not_tokenized_again() -> None:
    """The model may spell a word with other tokens than the tokenizer would."""
    chat, tokenizer = chat_of("qwen2_5"), tokenizer_of("qwen2_5")
    letters = tuple(tokenizer.convert_tokens_to_ids(letter) for letter in "Theanswer")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    held = (*chat.opening([QUESTION], ()), *letters, end)
    messages = [QUESTION, {"role": "assistant", "content": tokenizer.decode(list(letters))}]
    reply = {"role": "user", "content": "Go on."}
    following = chat.extend(held, messages, [reply], ()).tokens
    again = tokenizer(rendered("qwen2_5", [*messages, reply]), add_special_tokens=False)
    assert following[: len(held)] == held
    assert tuple(again["input_ids"])[: len(held)] != held, "the case is one where it matters"
    assert tokenizer.decode(again["input_ids"]) == tokenizer.decode(list(following))


@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_is_closed_once_whether_the_model_closed_it_or_not(ended: bool) -> None:
    chat, tokenizer = chat_of("qwen2_5"), tokenizer_of("qwen2_5")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    held = (*chat.opening([QUESTION], ()), 50, *([end] if ended else []))
    turn = {"role": "assistant", "content": tokenizer.decode([50])}
    tokens = chat.extend(held, [QUESTION, turn], [{"role": "user", "content": "?"}], ()).tokens
    opened = chat.opening([QUESTION], ()).count(end)
    assert tokens.count(end) == opened + 2  # of the turn and of the reply


@pytest.mark.parametrize("name", DROPS_THINKING)
def test_templates_that_rewrite_the_past_are_caught(name: str) -> None:
    proof = chat_of(name).prove((ADD,))
    broken = tuple(kind for kind, why in proof.items() if why is not None)
    assert broken == DROPS_THINKING[name]
    for kind in broken:
        assert str(proof[kind]).startswith("at token ")


@pytest.mark.parametrize("name", KEEPS_ALL)
def test_templates_that_keep_the_past_are_not_suspected(name: str) -> None:
    assert set(chat_of(name).prove((ADD,)).values()) == {None}


def test_a_rewritten_past_is_what_the_template_renders() -> None:
    chat, tokenizer = chat_of("qwen3"), tokenizer_of("qwen3")
    text = "<think>\nhard\n</think>\n\n7"
    held = (*chat.opening([QUESTION], ()), *tokenizer(text)["input_ids"])
    turn, reply = {"role": "assistant", "content": text}, {"role": "user", "content": "Sure?"}
    following = chat.extend(held, [QUESTION, turn], [reply], ())
    assert following.broken is not None and "<think>" in following.broken
    assert tokenizer.decode(list(following.tokens)) == rendered("qwen3", [QUESTION, turn, reply])
    assert "hard" not in tokenizer.decode(list(following.tokens))


def test_a_template_that_cannot_show_a_reply_is_refused() -> None:
    tokenizer = type(tokenizer_of("tiny")).from_pretrained(tokenizer_of("tiny").name_or_path)
    tokenizer.chat_template = "{{ messages[0].content }} {{ messages[1].content }}"
    with pytest.raises(ModelError, match="does not show messages"):
        TemplateChat(tokenizer, (2,)).prove(())


def test_plain_text_goes_on_as_plain_text() -> None:
    tokenizer = tokenizer_of("tiny")
    chat = PlainChat(tokenizer)
    held = (*chat.opening([{"role": "user", "content": "3+4="}], ()), 28)
    tokens = chat.extend(held, [], [{"role": "user", "content": " wrong: "}], ()).tokens
    assert tokens[: len(held)] == held
    assert tokenizer.decode(list(tokens[len(held) :])) == " wrong: "


words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["tiny", *NAMES]),
    turns=st.lists(
        st.tuples(
            st.lists(st.integers(6, 260), max_size=12),
            st.sampled_from(["user", "tool"]),
            words,
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_random_conversations_only_grow(name: str, turns: list[Any]) -> None:
    """Any tokens at all, those of half a character too; each segment begins with a rendering."""
    chat, tokenizer, tools = chat_of(name), tokenizer_of(name), (ADD,)
    chat.prove(tools)
    messages: list[Any] = [QUESTION]
    held = chat.opening(messages, tools)
    for sampled, role, text, thought in turns:
        held = (*held, *sampled)
        content = tokenizer.decode(sampled)
        content = f"<think>\nhm\n</think>\n\n{content}" if thought else content
        messages.append({"role": "assistant", "content": content})
        reply = {"role": role, "name": "add", "content": text, "tool_call_id": "call00000"}
        following = chat.extend(held, messages, [reply], tools)
        if following.broken is None:
            assert following.tokens[: len(held)] == held
            assert len(following.tokens) > len(held)
        messages.append(reply)
        held = following.tokens
