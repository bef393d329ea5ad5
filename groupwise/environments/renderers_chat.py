"""Conversations by the package `renderers`, for the model families that it knows.

It has code of its own for each family: how a turn goes on after a reply, token by token, and how
the family writes tool calls (XML in one, a JSON list in another), which Hermes' form is not. Which
family a model is of is not guessed from its name: a renderer is used if it writes the very tokens
that the model's own chat template writes, on probe conversations. Fine-tuned models and folders
with the family's template are so found, and a template that was changed is not.

Where a renderer cannot go on without rendering the past again, the template's way is taken.
"""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from groupwise.environments.base import ToolCall, Turn
from groupwise.environments.calls import MOST_CALLS, THINKING_ENDS, call_id
from groupwise.environments.chat import (
    QUESTION,
    RESULT,
    SENTINEL,
    THOUGHT,
    Continued,
    Messages,
    TemplateChat,
    Tools,
    assistant_turn,
)
from groupwise.errors import ConfigError, ModelError, quoted
from groupwise.types import StopReason

log = logging.getLogger("groupwise")

TURN_MARKS = (
    "<|im_start|>", "<|start_header_id|>", "[gMASK]", "<|turn>", "<｜User｜>", "]~b]",
    "<assistant>", "<|im_user|>", "<|message_user|>", "<｜hy_User", "<|channel|>",
)  # fmt: skip
"""The families' templates have one of these. Importing `renderers` takes a second or two, so a
template without any is not tried."""
NEEDS_DOWNLOAD = {"gpt-oss": "<|channel|>"}
"""Renderers that fetch a vocabulary when they are made: only for a template with that mark."""

ERRORS = {
    "invalid_json": "the call is not valid JSON",
    "unclosed_block": "the call does not end",
    "missing_name": "the call has no name",
    "unknown_tool": "there is no such tool",
}


ChatKind = Literal["auto", "template", "renderers"]


class RenderersChat(TemplateChat):
    """The template's conversation, continued and read by the family's renderer."""

    def __init__(
        self, tokenizer: Any, eos_ids: Sequence[int], renderer: Any, family: str, tools: Tools
    ) -> None:
        super().__init__(tokenizer, eos_ids)
        self.renderer, self.family, self.tools = renderer, family, tools
        question = [{"role": "user", "content": QUESTION}]
        shown = renderer.render_ids(question, tools=_schemas(tools))
        asked = renderer.render_ids(question, tools=_schemas(tools), add_generation_prompt=True)
        self.turn_begins: list[int] = asked[len(shown) :]
        """What a prompt ends with."""
        thought: Any = tokenizer.convert_tokens_to_ids("<think>")
        places = [n for n, token in enumerate(self.turn_begins) if token == thought]
        self.header = tuple(self.turn_begins[: places[0]] if places else self.turn_begins)

    def opening(self, messages: Messages, tools: Tools) -> tuple[int, ...]:
        """The family's template shows replies of tools, as the probes have shown."""
        return self.written(messages, tools) if tools else super().opening(messages, tools)

    def extend(
        self, held: tuple[int, ...], messages: Messages, replies: Messages, tools: Tools
    ) -> Continued:
        begins = self._last_turn(held)
        if begins is None:
            return super().extend(held, messages, replies, tools)
        try:
            bridged = self.renderer.bridge_to_next_turn(
                list(held[:begins]),
                list(held[begins:]),
                [dict(reply) for reply in replies],
                tools=_schemas(tools),
            )
        except Exception as error:  # it checks replies more strictly than most templates
            log.debug("the renderer of %s cannot go on: %s", self.family, error)
            bridged = None
        if bridged is None or tuple(bridged.token_ids[: len(held)]) != held:
            return super().extend(held, messages, replies, tools)
        return Continued(tuple(bridged.token_ids))

    def parse(self, text: str, stop: StopReason) -> Turn:
        """Read as a `ParseTurn`. What was thought stays in the text."""
        try:
            parsed = self.renderer.parse_response(
                list(self._tokens(text)), tools=_schemas(self.tools), prompt_ids=self.turn_begins
            )
        except Exception as error:  # nothing that a model writes may end a run
            why = f"the turn cannot be read: {quoted(str(error), 200)}"
            return Turn(text, (ToolCall(call_id(0), "", error=why),), stop)
        calls = tuple(_call(n, made) for n, made in enumerate(parsed.tool_calls[:MOST_CALLS]))
        if not calls:
            return Turn(text.strip(), (), stop)
        thoughts, mark, _ = text.rpartition(THINKING_ENDS)
        unread = "".join(
            made.raw for made, call in zip(parsed.tool_calls, calls, strict=False) if call.error
        )
        return Turn(f"{thoughts}{mark}{parsed.content}{unread}".strip(), calls, stop)

    def _last_turn(self, held: tuple[int, ...]) -> int | None:
        """Where the last turn of the model begins: behind its header, a thought that the prompt
        opened included."""
        size = len(self.header)
        places = range(len(held) - size, -1, -1)
        return next((at + size for at in places if held[at : at + size] == self.header), None)


def template_chat(
    tokenizer: Any, eos_ids: Sequence[int], tools: Tools, kind: ChatKind = "auto"
) -> TemplateChat | None:
    """By the family's renderer if there is one, else by the template; None without a template."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    if kind == "template":
        return TemplateChat(tokenizer, eos_ids)
    if kind == "renderers" and importlib.util.find_spec("renderers") is None:
        raise ConfigError(
            "environment.chat=renderers needs the package: pip install 'groupwise[renderers]'"
        )
    for family, renderer in _made(tokenizer, str(template)):
        if writes_as_template(renderer, tokenizer, tools):
            return RenderersChat(tokenizer, eos_ids, renderer, family, tools)
    if kind == "renderers":
        raise ModelError(
            "environment.chat=renderers: no renderer writes what this model's chat template "
            "writes. Use environment.chat=template"
        )
    return TemplateChat(tokenizer, eos_ids)


def _made(tokenizer: Any, template: str) -> Iterator[tuple[str, Any]]:
    """Every family's renderer that can be made with this tokenizer."""
    marked = any(mark in template for mark in TURN_MARKS)
    if not marked or importlib.util.find_spec("renderers") is None:
        return
    from renderers import config_from_name, create_renderer
    from renderers.base import MODEL_RENDERER_MAP

    for family in dict.fromkeys(MODEL_RENDERER_MAP.values()):
        if NEEDS_DOWNLOAD.get(family, "") not in template:
            continue
        try:
            config: Any = config_from_name(family)
            yield family, create_renderer(tokenizer, config)
        except Exception as error:  # of many kinds: a token of the family is missing
            log.debug("no renderer of %s: %s", family, error)


def writes_as_template(renderer: Any, tokenizer: Any, tools: Tools) -> bool:
    """Whether it writes the tokens of the model's own template, on probe conversations."""
    chat = TemplateChat(tokenizer, ())
    question = {"role": "user", "content": QUESTION}
    system = {"role": "system", "content": SENTINEL}
    turn = assistant_turn(SENTINEL, [])
    thinks = assistant_turn(f"<think>\n{THOUGHT}\n{THINKING_ENDS}\n\n{SENTINEL}", [])
    probes: list[list[Any]] = [[question], [system, question]]
    probes += [[question, turn, question], [question, thinks, question]]
    if tools:
        reply = {"role": "tool", "name": tools[0].name, "content": RESULT}
        reply["tool_call_id"] = call_id(0)
        probes.append([question, assistant_turn("", [reply]), reply])
    for probe in probes:
        try:
            wanted = chat.written(probe, tools)
            written = renderer.render_ids(probe, tools=_schemas(tools), add_generation_prompt=True)
        except Exception:  # a conversation that one of them refuses is no proof
            return False
        if tuple(written) != wanted:
            return False
    return True


def _schemas(tools: Tools) -> list[Any] | None:
    return [tool.schema for tool in tools] or None


def _call(number: int, made: Any) -> ToolCall:
    id, name, arguments = made.id or call_id(number), made.name or "", made.arguments
    if made.status != "ok":
        return ToolCall(id, name, error=ERRORS.get(made.status, "the call cannot be read"))
    if not isinstance(arguments, dict | None):
        return ToolCall(id, name, error="the arguments are no object of names and values")
    return ToolCall(id, name, arguments or {})
