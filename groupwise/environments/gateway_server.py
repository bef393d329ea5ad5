"""`groupwise serve gateway`: a model behind an OpenAI-compatible URL that records what it sampled.

POST /s/NAME/v1/chat/completions   goes on with the session NAME, or begins it
GET /s/NAME                        what it recorded so far: segments of exact tokens, and messages
DELETE /s/NAME                     the same, and forgets it
POST /v1/chat/completions          in no session: nothing is recorded
GET /v1/models, /health            /health is the only one that asks for no token
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from groupwise.environments.chat import Chat, PlainChat, TemplateChat
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.gateway_app import gateway_app, json_response
from groupwise.environments.gateway_request import RequestRefused
from groupwise.environments.gateway_session import Session
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.remote.guard import TokenGuard
from groupwise.remote.payload import ModelLimits
from groupwise.remote.running import Announce, Listening, run_app
from groupwise.remote.server import SPARE_REQUESTS
from groupwise.rollout.engine import Engine
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.noise import answer_key
from groupwise.types import Sampling

MAX_SESSIONS = 4096
MAX_NAME = 200
SESSION_LIMITS = EpisodeLimits(max_tokens=2**20, max_turns=4096, max_reply_tokens=2**20)
"""What one session may hold."""


@dataclass(frozen=True)
class GatewaySettings:
    """How every session samples. `seed` and a session's name make the keys of its replies."""

    model: str
    sampling: Sampling
    seed: int = 0
    override_sampling: bool = False


class NamedSessions:
    """Sessions by name, made when they are first asked for; without a name, one for a request."""

    def __init__(self, engine: Engine, policy: Policy, settings: GatewaySettings) -> None:
        self.engine, self.policy, self.settings = engine, policy, settings
        tokenizer = policy.tokenizer
        templated = bool(getattr(tokenizer, "chat_template", None))
        self.chat: Chat = (
            TemplateChat(tokenizer, policy.eos_ids)
            if templated
            else PlainChat(tokenizer, between="\n\n")
        )
        self.named: dict[str, Session] = {}
        self._nameless = 0

    def session(self, token: str, name: str | None) -> Session:
        if name is None:
            self._nameless += 1
            return self._make("request", self._nameless)
        if name not in self.named:
            if len(name) > MAX_NAME:
                raise RequestRefused(400, f"a session's name has at most {MAX_NAME} characters")
            if len(self.named) >= MAX_SESSIONS:
                raise RequestRefused(
                    429, f"there are {MAX_SESSIONS} sessions: end some with DELETE /s/NAME"
                )
            self.named[name] = self._make("session", name)
        return self.named[name]

    def record(self, name: str, *, forget: bool) -> dict[str, Any]:
        if name not in self.named:
            raise RequestRefused(404, "there is no such session")
        session = self.named.pop(name) if forget else self.named[name]
        if forget:
            session.close()
        return {"session": name, **recorded(session)}

    def _make(self, *parts: str | int) -> Session:
        return Session(
            self.engine,
            self.chat,
            self.policy.tokenizer,
            self.policy.eos_ids,
            self.settings.sampling,
            SESSION_LIMITS,
            key=answer_key(self.settings.seed, *parts),
            model=self.settings.model,
            override_sampling=self.settings.override_sampling,
            positions=ModelLimits.of(self.policy).positions,
        )


def recorded(session: Session) -> dict[str, Any]:
    """As JSON. `sampled` says which tokens the model drew; `versions`, from where on by which
    weights."""
    segments = []
    for segment in session.segments():
        written = segment.completion
        segments.append(
            {
                "prompt_token_ids": segment.prompt,
                "token_ids": written.tokens,
                "logprobs": written.logprobs,
                "sampled": written.sampled or (True,) * len(written.tokens),
                "versions": written.versions or ((0, written.version),),
            }
        )
    return {"segments": segments, "messages": session.messages, "turns": session.turns}


def standalone_app(sessions: NamedSessions, token: str, queue_size: int) -> Starlette:
    """`queue_size`: requests that may be in progress."""

    async def look(request: Request) -> Response:
        return json_response(sessions.record(request.path_params["name"], forget=False))

    async def end(request: Request) -> Response:
        return json_response(sessions.record(request.path_params["name"], forget=True))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(sessions.engine.close)

    more = [("GET", "/s/{name}", look), ("DELETE", "/s/{name}", end)]
    guard = Middleware(TokenGuard, token=token, max_requests=queue_size + SPARE_REQUESTS)
    return gateway_app(sessions, more, middleware=[guard], lifespan=lifespan)


def serve_gateway(
    settings: GatewaySettings,
    device: str,
    precision: str,
    quantization: str | None,
    make_engine: Callable[[Policy], Engine],
    listening: Listening,
    announce: Announce,
) -> None:
    """Load a model and answer until stopped."""
    place = pick_device(device)
    dtype = pick_dtype(precision, place)
    policy = load_policy(settings.model, place, dtype, layout="padded", quantization=quantization)

    def app(token: str) -> Starlette:
        engine = EngineThread(make_engine(policy))
        return standalone_app(NamedSessions(engine, policy, settings), token, listening.queue)

    run_app(app, listening, announce)
