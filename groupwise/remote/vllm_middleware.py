"""What we add to `vllm serve --middleware`: a token on every path, and a place to put weights.

GET /groupwise/state     the version of the weights, and what the server is, as JSON
PUT /groupwise/weights   a safetensors file, then its SHA-256; loaded before the reply
GET /health              vLLM's own; the only path that asks for no token

vLLM guards only some of its paths with `--api-key`, and has an endpoint for weights only in a mode
that also lets any caller run any method of its workers. So we add our own: the body is written to
a file of this machine and read by vLLM's loader, no pickle is involved in what a caller sends. (To
its own worker processes vLLM speaks msgpack and pickle over local sockets.) The version is vLLM's
own label, which comes back with each answer.

Imports guard.py alone of groupwise, and vLLM only where it is called.
"""

import asyncio
import hashlib
import hmac
import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from groupwise.remote.guard import (
    TOKEN_ENV,
    HTTPRefusal,
    TokenGuard,
    body_chunks,
    content_length,
    is_strong_token,
)

ADAPTER = "policy"
DIGEST_BYTES = 32
BROKEN = "broken"
"""The version of weights that could not be loaded whole."""
VERSION = re.compile(r"[0-9a-zA-Z_.-]{1,64}:[0-9]{1,12}")


class WeightsMiddleware:
    """Closed to whoever has not the token; what is not ours goes on to vLLM."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        token = os.environ.get(TOKEN_ENV, "")
        if not is_strong_token(token):
            raise ValueError(f"set {TOKEN_ENV} to a secret of 16 ASCII characters or more")
        self.guard = TokenGuard(self._answer, token)
        self.updating = asyncio.Lock()
        self.adapter: pathlib.Path | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.guard(scope, receive, send)
        finally:
            if scope["type"] == "lifespan" and self.adapter is not None:
                shutil.rmtree(self.adapter, ignore_errors=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = (scope.get("method"), scope.get("path"))
        if asked == ("GET", "/groupwise/state"):
            response: Response = JSONResponse(await describe(scope["app"].state.engine_client))
        elif asked == ("PUT", "/groupwise/weights"):
            try:
                response = await self._take(Request(scope, receive))
            except HTTPRefusal as refusal:
                response = refusal.response()
        else:
            await self.app(scope, receive, send)
            return
        await response(scope, receive, send)

    async def _take(self, request: Request) -> Response:
        """Write, check and load; the file of weights is gone afterwards, an adapter's stays."""
        version, kind, size = read_headers(request)
        if self.updating.locked():
            raise HTTPRefusal(409, "weights are being put here already")
        async with self.updating:
            folder: pathlib.Path | None = make_folder(size)
            try:
                name = "adapter_model" if kind == "adapter" else "model"
                path = folder / f"{name}.safetensors"
                await write_body(request, path, size)
                await self._load(request.app.state, path, kind, version)
                if kind == "adapter":
                    folder, self.adapter = self.adapter, folder
            finally:
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
        return JSONResponse({"version": version})

    async def _load(self, state: Any, path: pathlib.Path, kind: str, version: str) -> None:
        engine = state.engine_client
        if kind == "adapter":
            unpack_adapter(path)
        # Whoever still waits for an answer is told that it was cut off; cached prefixes go.
        await engine.pause_generation(mode="abort", clear_cache=True)
        try:
            if kind == "adapter":
                await load_adapter(state, path.parent)
            else:
                source = {"weights_path": str(path.parent)}
                await engine.collective_rpc("groupwise_reload", kwargs=source)
            await engine.update_weight_version(version)
        except Exception as error:
            if engine.errored:
                raise HTTPRefusal(503, "vLLM's engine has died") from error
            await engine.update_weight_version(BROKEN)
            if isinstance(error, HTTPRefusal):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            text = f"it cannot load the weights: {type(error).__name__} {reason}"
            raise HTTPRefusal(422, text) from error
        finally:
            if not engine.errored:
                await engine.resume_generation()


async def describe(engine: Any) -> dict[str, Any]:
    config = engine.vllm_config
    model, lora = config.model_config, config.lora_config
    text = model.hf_text_config
    return {
        "version": await engine.get_weight_version(),
        "vocab": text.vocab_size,
        "layers": text.num_hidden_layers,
        "width": text.hidden_size,
        "positions": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "logprobs": str(model.logprobs_mode),
        "lora_rank": 0 if lora is None else lora.max_lora_rank,
    }


def read_headers(request: Request) -> tuple[str, str, int]:
    """(version, kind, bytes of the file) of an upload that is announced as it should be."""
    version = request.headers.get("x-groupwise-version", "")
    kind = request.headers.get("x-groupwise-kind", "")
    if not VERSION.fullmatch(version) or kind not in ("weights", "adapter"):
        text = "x-groupwise-version must be RUN:STEP, x-groupwise-kind weights|adapter"
        raise HTTPRefusal(400, text)
    length = content_length(request)
    if length is None:
        raise HTTPRefusal(411, "content-length must be given")
    if length <= DIGEST_BYTES:
        raise HTTPRefusal(400, "the body is too short to be weights")
    return version, kind, length - DIGEST_BYTES


def make_folder(size: int) -> pathlib.Path:
    """Ours alone, in memory where there is room for it, else on the disk."""
    disk = tempfile.gettempdir()
    for root in (pathlib.Path("/dev/shm"), pathlib.Path(disk)):
        if os.access(root, os.W_OK) and shutil.disk_usage(root).free > size + 2**28:
            return pathlib.Path(tempfile.mkdtemp(prefix="groupwise-", dir=root))
    raise HTTPRefusal(507, f"there is no room for {size} bytes in /dev/shm or {disk}")


async def write_body(request: Request, path: pathlib.Path, size: int) -> None:
    """The file, and a check that it is the one whose digest follows it."""
    digest, tail, written = hashlib.sha256(), b"", 0
    with path.open("wb") as file:
        async for chunk in body_chunks(request, size + DIGEST_BYTES):
            whole = tail + chunk
            part, tail = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
            file.write(part)
            digest.update(part)
            written += len(part)
    if written != size or len(tail) != DIGEST_BYTES:
        raise HTTPRefusal(400, "the body ended early")
    if not hmac.compare_digest(digest.digest(), tail):
        raise HTTPRefusal(400, "the weights arrived damaged: they do not match their SHA-256")


def unpack_adapter(path: pathlib.Path) -> None:
    """The config that travelled in the file's metadata, as PEFT's second file beside it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            config = json.loads((file.metadata() or {})["adapter_config"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HTTPRefusal(400, "the body is no adapter with its config") from error
    (path.parent / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


async def load_adapter(state: Any, folder: pathlib.Path) -> None:
    """Under the same name and a new number: vLLM would read one that is loaded in place again at
    every step, and keeps cached prefixes apart by folder."""
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

    models = state.openai_serving_models
    before = models.lora_requests.pop(ADAPTER, None)
    if before is not None:
        await state.engine_client.remove_lora(before.lora_int_id)
    request = LoadLoRAAdapterRequest(lora_name=ADAPTER, lora_path=str(folder))
    outcome = await models.load_lora_adapter(request)
    if isinstance(outcome, ErrorResponse):
        raise HTTPRefusal(422, f"the adapter does not fit: {outcome.error.message[:300]}")
