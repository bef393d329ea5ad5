"""Mutated requests to the reference server, a rollout worker, the gateway and the viewer.

The applications are asked in-process, without sockets: a status of 500 or an exception is a
traceback, no reply in time a hang.
"""

import asyncio
import base64
import json
import pathlib
import random
from functools import cache
from typing import Any

import torch

from attack.case import Case, Outcome
from attack.commands import base, judged
from attack.isolated import isolated
from attack.mutate import TEXTS, hostile, mutated_bytes, mutated_text, mutated_tree
from groupwise.config import AdapterSettings, Config
from groupwise.config.engine import AutoEngine
from groupwise.environments.gateway_server import GatewaySettings, NamedSessions, standalone_app
from groupwise.load import make_engine, worker_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.policy.weights import trained_weights
from groupwise.remote.payload import WeightsStream
from groupwise.remote.reference_payload import LogprobsRequest, encode_request
from groupwise.remote.reference_server import ReferenceModel, reference_app
from groupwise.remote.worker_model import WorkerModel
from groupwise.remote.worker_payload import GenerateRequest, RunSettings
from groupwise.remote.worker_payload import encode_request as encode_sampling
from groupwise.remote.worker_server import worker_app
from groupwise.rollout.engine_thread import EngineThread
from groupwise.types import Completion, Group, Problem, Request, Sampling
from groupwise.view.catalog import Catalog
from groupwise.view.server import Viewer, build_app

TOKEN = "a-token-for-the-campaign"
LIMIT = 60.0
RUN = "a-run-of-the-campaign"
OF_A_RUN = ("metrics", "summary", "findings", "held_out", "histograms", "search", "problems",
            "problem", "steps")  # fmt: skip


@cache
def policy() -> Policy:
    return load_policy("tiny", torch.device("cpu"), torch.float32, layout="padded")


def fresh(adapter: AdapterSettings | None) -> Policy:
    device = torch.device("cpu")
    return load_policy("tiny", device, torch.float32, layout="padded", adapter=adapter)


def application(server: str, root: pathlib.Path) -> Any:
    """Made in the process that asks it: a model's thread would not survive a fork."""
    if server == "reference":
        return reference_app(ReferenceModel(policy(), 4096, 8), TOKEN)
    if server == "rollouts":
        make = WorkerModel(fresh, lambda own, run: worker_engine(own, run, trust_code=False))
        return worker_app(make, 8, TOKEN)
    if server == "gateway":
        engine = EngineThread(make_engine(policy(), Config()))
        settings = GatewaySettings("tiny", Sampling(8, 1.0))
        return standalone_app(NamedSessions(engine, policy(), settings), TOKEN, 8)
    return build_app(Viewer(Catalog([base("run", root)])), TOKEN, ["localhost"], "view")


async def asked(app: Any, request: dict[str, Any]) -> int:
    """The status of the reply; the body is read to its end."""
    body = base64.b64decode(request["body"])
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
    headers += [(b"cookie", f"view={TOKEN}".encode())]
    headers += [
        (k.encode("latin-1", "replace"), v.encode("latin-1", "replace"))
        for k, v in request["headers"]
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": request["method"], "path": request["path"], "root_path": "", "headers": headers,
        "raw_path": request["path"].encode(errors="replace"), "client": ("127.0.0.1", 9),
        "server": ("localhost", 80),
        "query_string": request["query"].encode("latin-1", "replace"),
    }  # fmt: skip
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])
    status = 0

    async def receive() -> Any:
        message = next(sent, None)
        if message is None:
            await asyncio.sleep(3600)
        return message

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif status >= 500:
            print(status, message.get("body", b"")[:500])

    await app(scope, receive, send)
    return status


def run(case: Case, root: pathlib.Path) -> Outcome:
    policy()
    server, requests = case.inputs["server"], case.inputs["requests"]
    if server == "viewer":
        base("run", root)

    def work() -> None:
        app = application(server, root)

        async def all_of_them() -> list[int]:
            return [await asked(app, request) for request in requests]

        statuses = asyncio.run(all_of_them())
        assert all(100 <= status < 500 or status == 503 for status in statuses), statuses
        raise SystemExit(0 if statuses[-1] < 400 else 2)

    return judged(isolated(work, LIMIT))


def request(method: str, path: str, body: bytes = b"", query: str = "") -> dict[str, Any]:
    encoded = base64.b64encode(body).decode()
    return {"method": method, "path": path, "query": query, "headers": [], "body": encoded}


def make(rng: random.Random, root: pathlib.Path) -> Case:
    server = rng.choice(tuple(GOOD))
    requests = GOOD[server](rng, root)
    target = requests[-1]
    way = rng.random()
    body = base64.b64decode(target["body"])
    if body and way < 0.8:
        changed = _changed(body, rng, rng.random() < 0.7)
        target["body"] = base64.b64encode(changed).decode()
    elif way < 0.9:
        target["query"] = mutated_text(target["query"] or "run=x&version=1", rng, 2)
    else:
        target["path"] = "/" + mutated_text(target["path"][1:], rng, 2)
    if rng.random() < 0.15:
        name = rng.choice(("authorization", "content-length", "host", "cookie", "x", "expect"))
        target["headers"] = [[name, rng.choice(TEXTS)[:500]]]
    if rng.random() < 0.05:
        target["method"] = rng.choice(("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "TRACE"))
    return Case("bodies", {"server": server, "requests": requests})


def _changed(body: bytes, rng: random.Random, by_tree: bool) -> bytes:
    """A JSON body, or one of tensors behind a JSON header."""
    if not by_tree:
        return mutated_bytes(body, rng, rng.randint(1, 6))
    if body[:1] == b"{":
        return json.dumps(mutated_tree(json.loads(body), rng, rng.randint(1, 3))).encode()
    length = int.from_bytes(body[:8], "little")
    tree, rest = json.loads(body[8 : 8 + length]), body[8 + length :]
    inner = tree.get("__metadata__", {})
    texts = {name: json.loads(text) if _is_json(text) else text for name, text in inner.items()}
    changed = mutated_tree({**tree, "__metadata__": texts}, rng, rng.randint(1, 3))
    if isinstance(changed.get("__metadata__"), dict) and rng.random() < 0.9:
        metadata = changed["__metadata__"].items()
        changed["__metadata__"] = {
            k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata
        }
    head = json.dumps(changed).encode()
    return len(head).to_bytes(8, "little") + head + rest


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _reference(rng: random.Random, root: pathlib.Path) -> list[dict[str, Any]]:
    answers = tuple(Completion((5, 6, 7), (-1.0, -1.0, -1.0), "eos") for _ in range(2))
    groups = (Group(Problem("p", "?"), (3, 4), answers, {}, (0.0, 1.0), (0.0, 0.0)),)
    body = encode_request(LogprobsRequest(groups, 1.0, "padded", True))
    return [request("POST", "/logprobs", body)]


def _rollouts(rng: random.Random, root: pathlib.Path) -> list[dict[str, Any]]:
    settings = RunSettings(run=RUN, adapter=None, engine=AutoEngine(), compile="none")
    requests = [request("POST", "/begin", settings.model_dump_json().encode())]
    weights = b"".join(WeightsStream(trained_weights(policy())))
    wanted = rng.choice(("begin", "weights", "generate", "generate"))
    if wanted == "weights":
        requests.append(request("PUT", "/weights", weights[:200_000], f"run={RUN}&version=1"))
    if wanted == "generate":
        prompts = (Request((5, 6, 7), (1, 2)), Request((8,), (3,)))
        body = encode_sampling(GenerateRequest(prompts, Sampling(4), RUN, None))
        requests.append(request("POST", "/generate", body))
    return requests


def _gateway(rng: random.Random, root: pathlib.Path) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "add", "description": "Adds.", "parameters": parameters}
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4,
        "temperature": 1.0, "n": 1, "stop": ["x"], "logprobs": True, "top_logprobs": 0,
        "stream": False, "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto", "response_format": {"type": "text"},
    }  # fmt: skip
    for name in rng.sample([*body][2:], rng.randint(3, len(body) - 2)):
        del body[name]
    path = rng.choice(("/v1/chat/completions", "/s/name/v1/chat/completions"))
    return [request("POST", path, json.dumps(body).encode())]


def _viewer(rng: random.Random, root: pathlib.Path) -> list[dict[str, Any]]:
    run = next(iter(Catalog([base("run", root)]).scan())).id
    one, step = f"/api/runs/{run}", f"/api/runs/{run}/steps/2"
    path = rng.choice(
        ("/api/runs", "/api/settings", "/api/compare", "/", "/static/app.js", f"/report/{run}",
         *(f"{one}/{name}" for name in OF_A_RUN),
         f"{step}/groups", f"{step}/groups/0", f"{step}/groups/0/tokens", f"{step}/groups/1/text")
    )  # fmt: skip
    names = ("run", "start", "stop", "width", "first", "q", "filter", "id", "answer", "message")
    value = hostile(rng)
    pairs = [f"{rng.choice(names)}={rng.choice((value, '1', '0', run))}" for _ in range(3)]
    return [request("GET", path, query="&".join(pairs)[:3000])]


GOOD = {"reference": _reference, "rollouts": _rollouts, "gateway": _gateway, "viewer": _viewer}
