"""What we add to `vllm serve --middleware`: a token on every path, and a place to put weights.

GET /groupwise/state     the version of the weights, and what the server is, as JSON
PUT /groupwise/weights   a safetensors file, then its SHA-256; loaded before the reply
GET /health              vLLM's own; the only path that asks for no token

vLLM guards only some of its paths with `--api-key`, and has an endpoint for weights only in a mode
that also lets any caller run any method of its workers. So we add our own: the body is written to
a file of this machine and read by vLLM's loader, no pickle is involved in what a caller sends. (To
its own worker processes vLLM speaks msgpack and pickle over local sockets.) The version is vLLM's
own label, which comes back with each answer.

Imports nothing of groupwise, and vLLM only where it is called.
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

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_ENV = "GROUPWISE_TOKEN"
ADAPTER = "policy"
DIGEST_BYTES = 32
BROKEN = "broken"
"""The version of weights that could not be loaded whole."""
VERSION = re.compile(r"[0-9a-zA-Z_.-]{1,64}:[0-9]{1,12}")


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Endpoints:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.token = os.environ.get(TOKEN_ENV, "")
        if not re.fullmatch(r"[\x21-\x7e]{16,512}", self.token):
            raise ValueError(f"set {TOKEN_ENV} to a secret of 16 ASCII characters or more")
        self.updating = asyncio.Lock()
        self.adapter: pathlib.Path | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self.app(scope, receive, send)
            finally:
                self._forget_adapter()
            return
        if scope["type"] != "http":
            return  # closes a websocket: nothing of ours uses one
        if scope["path"] == "/health":
            await self.app(scope, receive, send)
            return
        if not is_authorized(scope, self.token):
            response: Response = JSONResponse({"error": "the token is missing or wrong"}, 401)
            await response(scope, receive, send)
            return
        asked = (scope["method"], scope["path"])
        if asked == ("GET", "/groupwise/state"):
            response = JSONResponse(await describe(scope["app"].state.engine_client))
        elif asked == ("PUT", "/groupwise/weights"):
            response = await self._take(scope, receive)
        else:
            await self.app(scope, receive, send)
            return
        await response(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive) -> Response:
        """Write, check and load; the file of weights is gone afterwards, an adapter's stays."""
        headers = {
            name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]
        }
        folder: pathlib.Path | None = None
        try:
            version, kind, size = read_headers(headers)
            if self.updating.locked():
                raise Refused(409, "weights are being put here already")
            async with self.updating:
                folder = make_folder(size)
                name = "adapter_model" if kind == "adapter" else "model"
                path = folder / f"{name}.safetensors"
                await write_body(receive, path, size)
                await self._load(scope["app"].state, path, kind, version)
                if kind == "adapter":
                    folder, self.adapter = self.adapter, folder
            return JSONResponse({"version": version})
        except Refused as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _forget_adapter(self) -> None:
        if self.adapter is not None:
            shutil.rmtree(self.adapter, ignore_errors=True)

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
                rpc = {"weights_path": str(path.parent)}
                await engine.collective_rpc("groupwise_reload", kwargs=rpc)
            await engine.update_weight_version(version)
        except Exception as error:
            if engine.errored:
                raise Refused(503, "vLLM's engine has died") from error
            await engine.update_weight_version(BROKEN)
            if isinstance(error, Refused):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise Refused(
                422, f"the weights do not fit: {type(error).__name__} {reason}"
            ) from error
        finally:
            if not engine.errored:
                await engine.resume_generation()


def is_authorized(scope: Scope, token: str) -> bool:
    """In a time that does not tell how much of the token was right."""
    given = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, secret = given.partition(b" ")
    right = hmac.compare_digest(secret.strip(), token.encode())
    return right and scheme.lower() == b"bearer"


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


def read_headers(headers: dict[str, str]) -> tuple[str, str, int]:
    """(version, kind, bytes of the file) of an upload that is announced as it should be."""
    version, kind = headers.get("x-groupwise-version", ""), headers.get("x-groupwise-kind", "")
    length = headers.get("content-length", "")
    if not VERSION.fullmatch(version) or kind not in ("weights", "adapter"):
        raise Refused(400, "x-groupwise-version must be RUN:STEP, x-groupwise-kind weights|adapter")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise Refused(411, "content-length must be given")
    if int(length) <= DIGEST_BYTES:
        raise Refused(400, "the body is too short to be weights")
    return version, kind, int(length) - DIGEST_BYTES


def make_folder(size: int) -> pathlib.Path:
    """Ours alone, in memory where there is room for it, else on the disk."""
    for root in (pathlib.Path("/dev/shm"), pathlib.Path(tempfile.gettempdir())):
        if os.access(root, os.W_OK) and shutil.disk_usage(root).free > size + 2**28:
            return pathlib.Path(tempfile.mkdtemp(prefix="groupwise-", dir=root))
    raise Refused(507, f"there is no room for {size} bytes in /dev/shm or {tempfile.gettempdir()}")


async def write_body(receive: Receive, path: pathlib.Path, size: int) -> None:
    """The file, and a check that it is the one whose digest follows it."""
    found, digest, left = hashlib.sha256(), bytearray(), size
    with path.open("wb") as file:
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise Refused(400, "the body ended early")
            body = memoryview(message.get("body", b""))
            part, rest = body[:left], body[left:]
            file.write(part)
            found.update(part)
            left -= len(part)
            digest += rest[: DIGEST_BYTES + 1]
            more = message.get("more_body", False)
    if left or len(digest) != DIGEST_BYTES:
        raise Refused(400, "the body ended early")
    if not hmac.compare_digest(found.digest(), bytes(digest)):
        raise Refused(400, "the weights arrived damaged: they do not match their SHA-256")


def unpack_adapter(path: pathlib.Path) -> None:
    """The config that travelled in the file's metadata, as PEFT's second file beside it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            config = json.loads((file.metadata() or {})["adapter_config"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Refused(400, "the body is no adapter with its config") from error
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
    found = await models.load_lora_adapter(request)
    if isinstance(found, ErrorResponse):
        raise Refused(422, f"the adapter does not fit: {found.error.message[:300]}")
