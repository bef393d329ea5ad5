"""What a request for a chat completion may ask for, as OpenAI's clients write it.

A request that asks for what the gateway cannot give is refused, and says which setting it was:
nothing is read and then ignored, but for what concerns OpenAI's own service.
"""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from groupwise.environments.base import ChatMessage, ToolSpec
from groupwise.errors import quoted
from groupwise.remote.guard import HTTPRefusal
from groupwise.remote.payload import first_problem
from groupwise.types import Sampling

MAX_CHOICES, MAX_STOPS, MAX_TOOLS, MAX_MESSAGES = 64, 16, 256, 4096

StopString = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class RequestRefused(HTTPRefusal):
    """A status and a sentence, in the form in which OpenAI's clients expect them."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code


class _Function(BaseModel):
    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(BaseModel):
    include_usage: bool | None = None


class _ResponseFormat(BaseModel):
    type: Literal["text"]


class _TextPart(BaseModel):
    text: str


class _Called(BaseModel):
    name: str
    arguments: dict[str, Any] | str


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Called

    def for_template(self) -> dict[str, Any]:
        """Arguments are an object, where their text is one."""
        arguments = self.function.arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                read = json.loads(arguments)
                arguments = read if isinstance(read, dict) else arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id or "", "type": "function", "function": function}


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None

    def for_template(self) -> dict[str, Any]:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        made: dict[str, Any] = {"role": role, "content": text}
        made |= self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        if self.tool_calls and self.role == "assistant":
            made["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return made


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions. Any model may be named: there is one."""

    model_config = ConfigDict(extra="forbid")

    messages: list[_Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    model: str | None = None
    tools: list[_Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: StopString | list[StopString] | None = Field(default=None, max_length=200)
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    response_format: _ResponseFormat | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None

    # These are about OpenAI's own service.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def max_new_tokens(self) -> int | None:
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit]
        return min(limits, default=None)

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Those that the model is shown."""
        if self.tool_choice == "none":
            return ()
        functions = [tool.function for tool in self.tools or ()]
        return tuple(
            ToolSpec(f.name, f.description or "", f.parameters or ToolSpec(f.name).parameters)
            for f in functions
        )

    def sampling(self, run: Sampling, *, override: bool) -> Sampling:
        """The run's, with what a request may choose for itself. Raises RequestRefused for others.

        Log-probs are those of the distribution that tokens are drawn from, and GRPO learns from
        answers that the run's own settings drew. `override` takes these whatever a request asks.
        """
        expected = {
            "temperature": run.temperature,
            "top_p": run.top_p,
            "top_k": run.top_k,
            "min_p": run.min_p,
            "repetition_penalty": run.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logit_bias": {},
            "seed": None,
        }
        for name, value in expected.items():
            asked = getattr(self, name)
            if asked is not None and asked != value and not override:
                raise RequestRefused(
                    400,
                    f"{name}={str(asked)[:60]} cannot be used: answers are drawn with the "
                    f"run's settings (here {value}). Leave {name} out, or let the gateway override "
                    "it (environment.override_sampling=true, --override-sampling)",
                    param=name,
                )
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return replace(run, stop=tuple(dict.fromkeys((*run.stop, *stops))))


def parse_request(body: bytes) -> ChatRequest:
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        unknown = problem["type"] == "extra_forbidden"
        text = f"{quoted(name, 60)} is not supported" if unknown else first_problem(error)
        raise RequestRefused(400, text, param=name[:60] or None) from None
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOPS:
        raise RequestRefused(400, f"at most {MAX_STOPS} stop strings", param="stop")
    return request


def chat_messages(request: ChatRequest) -> tuple[ChatMessage, ...]:
    """The request's messages as chat templates take them. Raises RequestRefused."""
    names: dict[str, str] = {}
    result = []
    for made in (message.for_template() for message in request.messages):
        for call in made.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if made["role"] == "tool" and made.get("tool_call_id") in names:
            made.setdefault("name", names[made["tool_call_id"]])
        result.append(made)
    if result[-1]["role"] == "assistant":
        raise RequestRefused(
            400, "the last message is the assistant's: there is nothing to answer", param="messages"
        )
    return tuple(result)


def same_message(held: ChatMessage, given: ChatMessage) -> bool:
    """Whether a message that came back is the one that is held.

    Clients leave out what is empty, and strip what the model wrote at its ends.
    """
    own = held["role"] == "assistant"
    texts = [message["content"].strip() if own else message["content"] for message in (held, given)]
    names = ("role", "tool_call_id")
    return (
        texts[0] == texts[1]
        and all(held.get(name) == given.get(name) for name in names)
        and (held.get("tool_calls") or []) == (given.get("tool_calls") or [])
    )
