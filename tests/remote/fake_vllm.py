"""A stand-in for `vllm serve` in a thread: our own endpoints for real, vLLM's in a few lines.

Only for what a real server does not do on demand: being slow, silent, wrong or another's. What
vLLM itself does is tested with vLLM (test_vllm_server.py).
"""

import asyncio
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.remote.fingerprint import model_fingerprint, probe_tokens
from groupwise.remote.vllm_middleware import WeightsMiddleware

TOKEN = "a-token-for-the-tests"


class FakeEngine:
    """What our endpoints use of vLLM's engine client."""

    def __init__(self, policy: Policy, **more: Any) -> None:
        self.version, self.errored = "default", False
        self.weights: dict[str, Tensor] = {}
        self.calls: list[str] = []
        self.running = ""
        config = policy.model.config
        model: dict[str, Any] = {
            "hf_text_config": SimpleNamespace(
                vocab_size=policy.vocab,
                num_hidden_layers=config.num_hidden_layers,
                hidden_size=config.hidden_size,
            ),
            "max_model_len": 64,
            "dtype": "torch.float32",
            "logprobs_mode": "processed_logprobs",
            **more,
        }
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(**model), lora_config=None)

    async def get_weight_version(self) -> str:
        return self.version

    async def update_weight_version(self, version: str) -> None:
        self.version = version

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert clear_cache and mode in ("abort", "wait", "keep")
        self.running = mode
        self.calls.append("pause")

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        self.calls.append(method)
        found = load_file(pathlib.Path(kwargs["weights_path"]) / "model.safetensors")
        if self.weights and found.keys() != self.weights.keys():
            raise KeyError("no parameter of that name")
        self.weights = found


class FakeVllm:
    """Answers are the seed's digits; `spoil` may replace a reply, `delay` holds answers back."""

    def __init__(self, policy: Policy, **more: Any) -> None:
        self.engine = FakeEngine(policy, **more)
        self.policy = policy
        self.delay, self.asked, self.url = 0.0, 0, ""
        self.spoil: Callable[[dict[str, Any]], Response | dict[str, Any]] = lambda reply: reply

    def app(self) -> Starlette:
        routes = [
            Route("/inference/v1/generate", self.generate, methods=["POST"]),
            Route("/health", lambda request: PlainTextResponse("")),
        ]
        app = Starlette(routes=routes, middleware=[Middleware(WeightsMiddleware)])
        app.state.engine_client = self.engine
        return app

    async def generate(self, request: Request) -> Response:
        question = await request.json()
        params = question["sampling_params"]
        if params.get("prompt_logprobs") is not None:
            return JSONResponse({"prompt_logprobs": self.probe(question["token_ids"])})
        self.asked += 1
        await asyncio.sleep(self.delay)
        tokens = tokens_for(params["seed"], params["max_tokens"])
        reply = {
            "token_ids": tokens,
            "logprobs": {"content": [{"token_id": t, "logprob": -t / 64} for t in tokens]},
            "finish_reason": "length",
            "weight_versions": [{"version": self.engine.version, "start": 0, "end": len(tokens)}],
        }
        found = self.spoil(reply)
        return found if isinstance(found, Response) else JSONResponse({"choices": [found]})

    def probe(self, tokens: list[int]) -> list[dict[str, Any] | None]:
        assert tuple(tokens) == probe_tokens(self.policy.vocab)
        logprobs = model_fingerprint(self.policy).probe
        pairs = zip(tokens[1:], logprobs, strict=True)
        return [None, *({str(token): {"logprob": logprob}} for token, logprob in pairs)]


def tokens_for(seed: int, count: int) -> list[int]:
    """What the fake answers: no end-of-sequence among it."""
    return [3 + (seed >> (4 * place)) % 16 for place in range(count)]


@contextmanager
def running(fake: FakeVllm) -> Iterator[FakeVllm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GROUPWISE_TOKEN", TOKEN)
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(fake.app(), log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        fake.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield fake
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
            listening.close()
