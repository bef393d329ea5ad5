"""A conversation as tokens that only ever grow: what was sampled is never tokenized again.

The next prompt is the tokens that are held, and a suffix. The suffix is what a chat template writes
behind an assistant's turn, found by rendering a turn whose text is known (a sentinel) and taking
what follows it:

    <|im_start|>assistant\\nSENTINEL<|im_end|>\\n<|im_start|>user\\nreply<|im_end|>\\n<|im_start|>...
                                  ^ the suffix begins here; its first token is held already if
                                    the model ended its turn with it

Some templates rewrite the past when a message is added: they drop what was thought, or move the
list of tools. Then no suffix is right: the conversation is rendered anew, a new segment begins, and
`Continued.broken` says at which token the template went another way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from groupwise.environments.base import ChatMessage, ToolSpec
from groupwise.environments.calls import THINKING_ENDS, call_id, describe_tools
from groupwise.errors import ModelError, quoted
from groupwise.policy.chat_template import render_chat
from groupwise.policy.tokenizing import encoded, text_of, tokens_of

SENTINEL, THOUGHT = "Qzx7sentinel", "Qzx7thought"
QUESTION, RESULT = "Qzx7question", "Qzx7result"

OPENINGS = 64
"""Prompts whose tokens are kept."""

Tools = tuple[ToolSpec, ...]
Messages = Sequence[ChatMessage]


@dataclass(frozen=True)
class Continued:
    """The next prompt. Where `broken` says why, it is no extension of the tokens held."""

    tokens: tuple[int, ...]
    broken: str | None = None


class Chat(Protocol):
    def opening(self, messages: Messages, tools: Tools) -> tuple[int, ...]:
        """The first prompt."""
        ...

    def extend(
        self, held: tuple[int, ...], messages: Messages, replies: Messages, tools: Tools
    ) -> Continued:
        """The next prompt. `messages` is all before `replies`, an assistant's turn the last."""
        ...


class PlainChat:
    """For plain prompts and models without a chat template: replies are appended as they are."""

    def __init__(self, tokenizer: Any, between: str = "") -> None:
        self.tokenizer, self.between = tokenizer, between

    def opening(self, messages: Messages, tools: Tools) -> tuple[int, ...]:
        text = "\n\n".join(message["content"] for message in messages)
        return tuple(encoded(self.tokenizer, text, add_special_tokens=True)["input_ids"])

    def extend(
        self, held: tuple[int, ...], messages: Messages, replies: Messages, tools: Tools
    ) -> Continued:
        text = "".join(f"{self.between}{reply['content']}" for reply in replies) + self.between
        return Continued((*held, *tokens_of(self.tokenizer, text)))


class TemplateChat:
    """By the tokenizer's chat template. What it does is found out once, on probe conversations."""

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.eos_texts = {token: text_of(tokenizer, [token]) for token in eos_ids}
        self._broken: dict[tuple[str, bool, Tools], str | None] = {}
        self._tool_form: dict[Tools, str] = {}
        self._shows_tools: dict[Tools, bool] = {}
        self._openings: dict[tuple[str, Tools], tuple[int, ...]] = {}

    def opening(self, messages: Messages, tools: Tools) -> tuple[int, ...]:
        """Rendered once for the episodes of a group, which begin alike."""
        key = repr(messages), tools
        if key not in self._openings:
            while len(self._openings) >= OPENINGS:
                self._openings.pop(next(iter(self._openings)))
            self._openings[key] = self.written(self._in_form(messages, tools), tools)
        return self._openings[key]

    def written(self, messages: Messages, tools: Tools) -> tuple[int, ...]:
        """What the template makes of messages as they are, replies of tools too."""
        return self._tokens(self._render(self._described(messages, tools), tools))

    def extend(
        self, held: tuple[int, ...], messages: Messages, replies: Messages, tools: Tools
    ) -> Continued:
        turns = [m["content"] for m in messages if m["role"] == "assistant"]
        thought = any(THINKING_ENDS in text for text in turns)
        broken = self.broken(replies[-1]["role"] if replies else "user", thought, tools)
        if broken is not None:
            whole = self._in_form([*messages, *replies], tools)
            try:
                text = self._render(self._described(whole, tools), tools)
                return Continued(self._tokens(text), broken)
            except ModelError:  # a turn that the template cannot render: what is held stays right
                pass
        suffix = self._tokens(self._suffix(replies, tools))
        if held and suffix and held[-1] == suffix[0] and held[-1] in self.eos_texts:
            suffix = suffix[1:]
        return Continued((*held, *suffix))

    def broken(self, role: str, thought: bool, tools: Tools) -> str | None:
        """Whether a reply of this role makes the template rewrite what stands before it, and where.

        `thought`: whether a turn so far has thinking in it.
        """
        key = (role, thought, tools)
        if key not in self._broken:
            self._broken[key] = self._find_break(role, thought, tools)
        return self._broken[key]

    def prove(self, tools: Tools) -> dict[str, str | None]:
        """What the template does to the past, by kind of conversation; None: it keeps it.

        Raises ModelError for a template whose turns cannot be continued at all.
        """
        roles = ("user", "tool") if tools else ("user",)
        return {
            f"{role} reply{', thinking' if thought else ''}": self.broken(role, thought, tools)
            for role in roles
            for thought in (False, True)
        }

    def _find_break(self, role: str, thought: bool, tools: Tools) -> str | None:
        text = f"<think>\n{THOUGHT}\n{THINKING_ENDS}\n\n{SENTINEL}" if thought else SENTINEL
        reply: dict[str, Any] = {"role": role, "content": RESULT}
        if role == "tool":
            reply |= {"name": tools[0].name if tools else "tool", "tool_call_id": call_id(0)}
        replies = self._in_form([reply], tools)
        self._check_shown(self._suffix([reply], tools), role)
        calls = replies if role == "tool" and self._tool_form[tools] == "calls" else []
        question = {"role": "user", "content": QUESTION}
        asked = self._render([question], tools)
        after = self._render([question, assistant_turn(text, calls), *replies], tools)
        if SENTINEL not in after:
            return "the template leaves the assistant's turn out"
        after = after.partition(SENTINEL)[0]
        held = asked + text.partition(SENTINEL)[0].removeprefix(_opened_thought(asked))
        # What a template adds to a turn (an empty thought) is its taste; what it drops is the past.
        kept = after.startswith(asked) and (not thought or THOUGHT in after)
        return None if kept else self._first_difference(held, after)

    def _first_difference(self, before: str, after: str) -> str:
        old, new = self._tokens(before), self._tokens(after)
        at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
        at = min(len(old), len(new)) if at is None else at
        was, becomes = (
            quoted(text_of(self.tokenizer, tokens[at : at + 1]), 40) for tokens in (old, new)
        )
        return f"at token {at} the template has {becomes} where {was} was before"

    def _check_shown(self, suffix: str, role: str) -> None:
        if RESULT not in suffix:
            raise ModelError(
                f"the model's chat template does not show messages of the role {role!r}, so an "
                "environment cannot reply to the model: use another template or another model"
            )

    def _suffix(self, replies: Messages, tools: Tools) -> str:
        """What follows an assistant's turn: its end, the replies, and the next turn's beginning."""
        replies = self._in_form(replies, tools)
        calls = [reply for reply in replies if reply["role"] == "tool"]
        question = {"role": "user", "content": QUESTION}
        if calls and self._tool_form[tools] == "calls":
            suffix = self._after_calls([question, assistant_turn(SENTINEL, calls), *replies], tools)
            if suffix is not None:
                return suffix
        return self._after_sentinel([question, assistant_turn(SENTINEL, []), *replies], tools)

    def _after_sentinel(self, messages: Messages, tools: Tools) -> str:
        text = self._render(messages, tools)
        if SENTINEL not in text:
            raise ModelError("the model's chat template does not show an assistant's turn")
        return text.rpartition(SENTINEL)[2]

    def _after_calls(self, messages: Messages, tools: Tools) -> str | None:
        """Behind the calls, a turn ends with the first end-of-sequence token."""
        after = self._after_sentinel(messages, tools)
        ends = [at for text in self.eos_texts.values() if (at := after.find(text)) >= 0]
        return after[min(ends) :] if ends else None

    def _in_form(self, replies: Messages, tools: Tools) -> list[ChatMessage]:
        """Replies as the template takes them: some know no role `tool`."""
        if not any(reply["role"] == "tool" for reply in replies):
            return list(replies)
        if tools not in self._tool_form:
            self._tool_form[tools] = self._find_tool_form(tools)
        if self._tool_form[tools] != "user":
            return list(replies)
        return [_as_user(reply) if reply["role"] == "tool" else reply for reply in replies]

    def _find_tool_form(self, tools: Tools) -> str:
        """calls: behind a turn with calls; plain: behind any turn; user: as a user's text."""
        name = tools[0].name if tools else "tool"
        reply = {"role": "tool", "name": name, "content": RESULT, "tool_call_id": call_id(0)}
        question = {"role": "user", "content": QUESTION}
        for form, calls in (("calls", [reply]), ("plain", [])):
            messages = [question, assistant_turn(SENTINEL, calls), reply]
            try:
                find = self._after_calls if calls else self._after_sentinel
                suffix = find(messages, tools)
            except ModelError:
                continue
            if suffix is not None and RESULT in suffix:
                return form
        return "user"

    def _described(self, messages: Messages, tools: Tools) -> list[ChatMessage]:
        """With the tools in a system prompt, where the template does not show them itself."""
        if not tools or self._template_shows(tools):
            return list(messages)
        text = describe_tools(tools)
        first, *others = messages
        if first["role"] == "system":
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *others]
        try:
            described = [{"role": "system", "content": text}, first, *others]
            self._render(described, ())
            return described
        except ModelError:  # no system role
            return [{**first, "content": f"{text}\n\n{first['content']}"}, *others]

    def _template_shows(self, tools: Tools) -> bool:
        if tools not in self._shows_tools:
            messages = [{"role": "user", "content": QUESTION}]
            try:
                self._shows_tools[tools] = tools[0].name in self._render(messages, tools)
            except ModelError:
                self._shows_tools[tools] = False
        return self._shows_tools[tools]

    def _render(self, messages: Messages, tools: Tools) -> str:
        schemas = [tool.schema for tool in tools] or None
        return render_chat(self.tokenizer, messages, tools=schemas, add_generation_prompt=True)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(tokens_of(self.tokenizer, text))


def assistant_turn(text: str, calls: Messages) -> dict[str, Any]:
    """An assistant's turn with one call for each reply of a tool, whose argument is a sentinel."""
    made = [
        {
            "id": reply.get("tool_call_id", call_id(number)),
            "type": "function",
            "function": {
                "name": reply.get("name") or "tool",
                "arguments": {"argument": SENTINEL},
            },
        }
        for number, reply in enumerate(calls)
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def _opened_thought(asked: str) -> str:
    """Some prompts end with the beginning of a thought, which a turn then does not have."""
    return "<think>\n" if asked.endswith("<think>\n") else ""


def _as_user(reply: ChatMessage) -> Mapping[str, str]:
    content = f"<tool_response>\n{reply['content']}\n</tool_response>"
    return {"role": "user", "content": content}
