"""What we add to `vllm serve --middleware`: a token on every path, and a place to put weights.

GET /groupwise/state     the version of the weights, and what the server is, as JSON
PUT /groupwise/weights   a safetensors file, then its SHA-256; loaded before the reply. Of weights,
                         of an adapter, or of what is different from the version that it has
GET /health              vLLM's own; the only path that asks for no token

vLLM guards only some of its paths with `--api-key`, and has an endpoint for weights only in a mode
that also lets any caller run any method of its workers. So we add our own: the body is written to
a file of this machine and read by vLLM's loader, no pickle is involved in what a caller sends. (To
its own worker processes vLLM speaks msgpack and pickle over local sockets.) The version is vLLM's
own label, which comes back with each answer.

The file of all weights is kept: vLLM fuses and shards what it reads, so a difference
(sparse_weights.py) is applied to the file, which is then read again.

Imports guard.py and sparse_weights.py alone of groupwise, and vLLM only where it is called.
"""

import asyncio
import hashlib
import hmac
import io
import json
import os
import pathlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import IO, Any

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
from groupwise.remote.sparse_weights import DifferenceRefused, WeightsDifference

ADAPTER = "policy"
DIGEST_BYTES = 32
BROKEN = "broken"
"""The version of weights that could not be loaded whole."""
VERSION = re.compile(r"[0-9a-zA-Z_.-]{1,64}:[0-9]{1,12}")


FILES = {"weights": "model.safetensors", "adapter": "adapter_model.safetensors"}
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class UploadHeader:
    """`running`: what becomes of answers that grow. `base`: whose difference it is, if it is one.
    `size`: bytes of the file."""

    version: str
    kind: str
    running: str
    base: str
    size: int


class WeightsMiddleware:
    """Closed to whoever has not the token; what is not ours goes on to vLLM."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        token = os.environ.get(TOKEN_ENV, "")
        if not is_strong_token(token):
            raise ValueError(f"set {TOKEN_ENV} to a secret of 16 ASCII characters or more")
        self.guard = TokenGuard(self._answer, token)
        self.updating = asyncio.Lock()
        self.held: pathlib.Path | None = None
        """The folder of the weights, or of the adapter, that vLLM has."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.guard(scope, receive, send)
        finally:
            if scope["type"] == "lifespan":
                self._hold(None)

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
        """Write, check and load."""
        upload = read_headers(request)
        if self.updating.locked():
            raise HTTPRefusal(409, "another upload of weights is in progress")
        async with self.updating:
            if upload.kind == "difference":
                checksum = await self._change(request, upload)
                return JSONResponse({"version": upload.version, "checksum": checksum})
            if upload.kind == "weights":
                self._hold(None)  # room for its successor
            folder = make_folder(upload.size)
            try:
                path = folder / FILES[upload.kind]
                with path.open("wb") as file:
                    await write_body(request, file, upload.size)
                if upload.kind == "adapter":
                    unpack_adapter(path)
                await self._load(request.app.state, folder, upload)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._hold(folder)
        return JSONResponse({"version": upload.version})

    async def _change(self, request: Request, upload: UploadHeader) -> str:
        """Nothing is changed by a body that is damaged, or meant for other weights."""
        body = io.BytesIO()
        engine = request.app.state.engine_client
        if self.held is None or await engine.get_weight_version() != upload.base:
            raise HTTPRefusal(412, f"it does not have weights {upload.base}")
        path = self.held / FILES["weights"]
        if upload.size > path.stat().st_size:
            raise HTTPRefusal(413, "a difference must be smaller than the weights")
        await write_body(request, body, upload.size)
        try:
            checksum = await asyncio.to_thread(change_file, path, body.getvalue())
        except DifferenceRefused as error:
            raise HTTPRefusal(412, str(error)) from error
        await self._load(request.app.state, self.held, upload)
        return checksum

    def _hold(self, folder: pathlib.Path | None) -> None:
        before, self.held = self.held, folder
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    async def _load(self, state: Any, folder: pathlib.Path, upload: UploadHeader) -> None:
        engine = state.engine_client
        # In turn, whoever still waits for an answer is told that it was cut off. Cached prefixes
        # go; in flight, the keys and values of answers that go on are computed again.
        await engine.pause_generation(mode=upload.running, clear_cache=True)
        try:
            if upload.kind == "adapter":
                await load_adapter(state, folder)
            else:
                source = {"weights_path": str(folder)}
                await engine.collective_rpc("groupwise_reload", kwargs=source)
            await engine.update_weight_version(upload.version)
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


def read_headers(request: Request) -> UploadHeader:
    """The checked headers of an upload."""
    names = ("version", "kind", "running", "base")
    version, kind, running, base = (request.headers.get(f"x-groupwise-{n}", "") for n in names)
    based = bool(VERSION.fullmatch(base)) or kind in FILES
    if not (VERSION.fullmatch(version) and kind in (*FILES, "difference") and based):
        text = "x-groupwise-version must be RUN:STEP, x-groupwise-kind weights|adapter|difference"
        raise HTTPRefusal(400, f"{text}, and for a difference x-groupwise-base RUN:STEP")
    if running not in ("abort", "wait", "keep"):
        raise HTTPRefusal(400, "x-groupwise-running must be abort, wait or keep")
    length = content_length(request)
    if length is None:
        raise HTTPRefusal(411, "content-length must be given")
    if length <= DIGEST_BYTES:
        raise HTTPRefusal(400, "the body is too short to be weights")
    return UploadHeader(version, kind, running, base, length - DIGEST_BYTES)


def change_file(path: pathlib.Path, body: bytes) -> str:
    """Apply a difference to a safetensors file; the hash of what it holds then."""
    import numpy as np
    import torch

    raw = torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="r+"))
    begin = 8 + int.from_bytes(bytes(raw[:8].tolist()), "little")
    header: dict[str, Any] = json.loads(bytes(raw[8:begin].tolist()))
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (begin + at for at in entry["data_offsets"])
            weights[name] = raw[first:last].view(getattr(torch, DTYPES[entry["dtype"]]))
    difference = WeightsDifference(body, weights)
    for _ in difference:
        pass
    return difference.checksum()


def make_folder(size: int) -> pathlib.Path:
    """Ours alone, in memory where there is room for it, else on the disk."""
    disk = tempfile.gettempdir()
    for root in (pathlib.Path("/dev/shm"), pathlib.Path(disk)):
        if os.access(root, os.W_OK) and shutil.disk_usage(root).free > size + 2**28:
            return pathlib.Path(tempfile.mkdtemp(prefix="groupwise-", dir=root))
    raise HTTPRefusal(507, f"there is no room for {size} bytes in /dev/shm or {disk}")


async def write_body(request: Request, file: IO[bytes], size: int) -> None:
    """The file, and a check that it is the one whose digest follows it."""
    digest, tail, written = hashlib.sha256(), b"", 0
    async for chunk in body_chunks(request, size + DIGEST_BYTES):
        whole = tail + chunk
        part, tail = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
        file.write(part)
        digest.update(part)
        written += len(part)
    if written != size or len(tail) != DIGEST_BYTES:
        raise HTTPRefusal(400, "the body ended early")
    if not hmac.compare_digest(digest.digest(), tail):
        raise HTTPRefusal(400, "the weights do not match their SHA-256: damaged on the way")


def unpack_adapter(path: pathlib.Path) -> None:
    """The config that travelled in the file's metadata, as PEFT's second file beside it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            config = json.loads((file.metadata() or {})["adapter_config"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HTTPRefusal(400, "the body is not an adapter with its config") from error
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
