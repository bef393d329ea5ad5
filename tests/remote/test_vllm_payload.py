"""Questions and answers as vLLM has them, and the files that weights travel in: pure functions."""

import asyncio
import hashlib
import json
import pathlib
import re
import shlex
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from fake_vllm import TOKEN, FakeVllm
from groupwise.cli.app import config_for
from groupwise.cli.main import main
from groupwise.config import AdapterSettings, Config, Servers, VllmEngineSettings
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.load import make_engine
from groupwise.objective.objective import Objective
from groupwise.policy.adapters import add_adapter
from groupwise.policy.load import make_policy
from groupwise.policy.weights import trained_weights
from groupwise.recipe import parse, write_config
from groupwise.recipe.tiny import tiny
from groupwise.remote import vllm_command as command
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.payload import WeightsStream
from groupwise.remote.vllm_client import (
    adapter_config,
    adapter_weights,
    checkpoint_weights,
    with_digest,
)
from groupwise.remote.vllm_command import Serving, serve_arguments, serve_environment
from groupwise.remote.vllm_middleware import WeightsMiddleware
from groupwise.remote.vllm_payload import (
    Sampled,
    completion,
    decode_probe,
    decode_response,
    encode_request,
    sampling_params,
)
from groupwise.remote.vllm_servers import version_of
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Sampling
from small_models import random_model, random_policy, tokenizer

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "vllm.md"
NO_STOPS = StopStrings((), tokenizer())


def test_a_question_leaves_no_sampling_setting_to_the_server() -> None:
    sampling = Sampling(7, 0.8, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, stop=("x",))
    params = sampling_params((1 << 64) - 1, sampling, (2, 3))
    assert params == {
        "seed": (1 << 63) - 1, "max_tokens": 7, "temperature": 0.8, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "repetition_penalty": 1.2, "stop": ["x"], "stop_token_ids": [2, 3],
        "ignore_eos": True, "detokenize": True, "logprobs": 0,
    }  # fmt: skip
    question = json.loads(encode_request((5, 6), params, adapter=True))
    assert question == {"token_ids": [5, 6], "sampling_params": params, "model": "policy"}


def test_answers_are_cut_where_our_own_engines_cut_them() -> None:
    def ended(tokens: tuple[int, ...], by: str, stops: StopStrings = NO_STOPS) -> tuple[Any, str]:
        drawn = Sampled(tokens, tuple(-float(t) for t in tokens), by, ((0, "run:4"),))
        found = completion(drawn, version_of, (2, 3), stops)
        assert found.version == 4 and found.logprobs == tuple(-float(t) for t in found.tokens)
        return found.tokens, found.stop

    assert ended((5, 6, 3), "stop") == ((5, 6, 3), "eos")
    assert ended((5, 2, 7), "length") == ((5, 2), "eos")
    assert ended((5, 6), "length") == ((5, 6), "length")
    assert ended((5, 6), "stop") == ((5, 6), "stop")
    assert ended((5, 41, 6), "stop", StopStrings(("41",), tokenizer())) == ((5, 41), "stop")


def test_an_answer_that_several_weights_drew_says_which_tokens_are_whose() -> None:
    def versions(*parts: tuple[int, str]) -> tuple[int, Any]:
        drawn = Sampled((5, 6, 2, 7), (-1.0,) * 4, "length", parts)
        found = completion(drawn, version_of, (2,), NO_STOPS)
        return found.version, found.versions

    assert versions((0, "run:4"), (2, "run:6")) == (4, ((0, 4), (2, 6)))
    assert versions((0, "run:4"), (3, "run:6")) == (4, ())  # that part lies behind the end


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "token_ids", "logprobs", "content", "weight_versions",
                         "prompt_logprobs", "finish_reason"]), inner, max_size=4),
    max_leaves=12,
))  # fmt: skip
def test_no_reply_is_taken_for_an_answer_that_is_none(data: Any) -> None:
    body = json.dumps(data).encode()
    for read in (lambda: decode_response(body, 61, 4), lambda: decode_probe(body, (1, 2, 3))):
        with pytest.raises(ServerUnavailable):
            read()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_written_weights_are_read_back_by_safetensors(
    dtype: torch.dtype, tmp_path: pathlib.Path
) -> None:
    tensors = {"a.b": torch.randn(3, 5), "c": torch.randn(()), "d": torch.randn(4, 2).t()}
    (tmp_path / "w.safetensors").write_bytes(b"".join(WeightsStream(tensors, dtype)))
    found = load_file(tmp_path / "w.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor.to(dtype))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox"])
def test_weights_have_the_names_of_a_checkpoint(family: str, tmp_path: pathlib.Path) -> None:
    policy = random_policy(family)
    policy.model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    given = [(name, weight.detach()) for name, weight in policy.model.named_parameters()]
    sent = dict(checkpoint_weights(policy, iter(given)))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_of_an_adapter_only_the_adapter_travels(tmp_path: pathlib.Path) -> None:
    model = random_model()
    adapter = add_adapter(model, AdapterSettings(rank=4), torch.float32, seed=0)
    policy = make_policy(model, tokenizer(), adapter=adapter)
    adapter.save(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    sent = dict(adapter_weights(trained_weights(policy).items()))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)
    metadata = {"adapter_config": adapter_config(adapter)}
    body = b"".join(with_digest(WeightsStream(sent, metadata=metadata)))
    assert hashlib.sha256(body[:-32]).digest() == body[-32:]
    (tmp_path / "sent").write_bytes(body[:-32])
    with safe_open(tmp_path / "sent", "pt") as file:
        config = json.loads(file.metadata()["adapter_config"])
    assert config["r"] == 4 and config["peft_type"] == "LORA"


def put(fake: FakeVllm, body: bytes, **headers: str) -> tuple[int, str]:
    """One PUT through our endpoints alone, without a network."""
    sent: list[Any] = []
    given = {"authorization": f"Bearer {TOKEN}", "x-groupwise-version": "run:1",
             "x-groupwise-kind": "weights", "x-groupwise-running": "abort",
             "content-length": str(len(body)),
             **{k.replace("_", "-"): v for k, v in headers.items()}}  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        endpoints = WeightsMiddleware(lambda *_: asyncio.sleep(0))
        app = SimpleNamespace(state=SimpleNamespace(engine_client=fake.engine))
        headers = [(k.encode(), v.encode()) for k, v in given.items() if v]
        scope = {"type": "http", "method": "PUT", "path": "/groupwise/weights", "app": app}
        await endpoints({**scope, "headers": headers}, receive, send)

    asyncio.run(call())
    return sent[0]["status"], sent[1]["body"].decode()


def test_uploads_are_loaded_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)
    fake = FakeVllm(random_policy())
    file = b"".join(WeightsStream({"a": torch.ones(3)}))
    whole = file + hashlib.sha256(file).digest()
    refused = {
        "damaged": put(fake, file + bytes(32)),
        "ended early": put(fake, whole[:-5], content_length=str(len(whole))),
        "too short": put(fake, b"x" * 32),
        "RUN:STEP": put(fake, whole, x_groupwise_version="run"),
        "abort, wait or keep": put(fake, whole, x_groupwise_running="kill"),
        "for a difference x-groupwise-base": put(fake, whole, x_groupwise_kind="difference"),
        "does not have weights run:0": put(
            fake, whole, x_groupwise_kind="difference", x_groupwise_base="run:0"
        ),
        "weights|adapter": put(fake, whole, x_groupwise_kind="pickle"),
        "content-length": put(fake, whole, content_length="many"),
        "no room": put(fake, whole, content_length="9" * 15),
        "token is missing": put(fake, whole, authorization=""),
        "token is missing or wrong": put(fake, whole, authorization="Bearer no"),
        "not an adapter": put(fake, whole, x_groupwise_kind="adapter"),
    }
    for why, (status, reply) in refused.items():
        assert 400 <= status < 510 and why in reply, (why, status, reply)
    assert fake.engine.calls == [] and fake.engine.version == "default"
    assert put(fake, whole) == (200, '{"version":"run:1"}')
    assert torch.equal(fake.engine.weights["a"], torch.ones(3))
    assert fake.engine.version == "run:1"
    fake.engine.errored = True
    fake.engine.weights = {"b": torch.ones(1)}
    assert put(fake, whole)[0] == 503


def test_a_server_without_a_secret_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for weak in ("", "short", "with a space in it....."):
        monkeypatch.setenv("GROUPWISE_TOKEN", weak)
        with pytest.raises(ValueError, match="GROUPWISE_TOKEN"):
            WeightsMiddleware(lambda *_: asyncio.sleep(0))


def test_serve_vllm_gives_vllm_what_training_needs() -> None:
    found = serve_arguments(
        Serving("tiny", port=8123, precision="fp32", lora_rank=12, more=("--enforce-eager",)), "m"
    )
    flags = dict(zip(found[::2], found[1::2], strict=False))
    assert flags["--model"] == "m" and found[-1] == "--enforce-eager"
    assert flags["--host"] == "127.0.0.1" and flags["--port"] == "8123"
    assert flags["--dtype"] == "float32" and flags["--logprobs-mode"] == "processed_logprobs"
    assert flags["--middleware"] == "groupwise.remote.vllm_middleware.WeightsMiddleware"
    assert found[found.index("--max-lora-rank") + 1] == "16"  # vLLM takes powers of two
    assert "--enable-lora" not in serve_arguments(Serving("tiny"), "m")
    environment = serve_environment("s3cret", {"PATH": "/bin", "VLLM_NO_USAGE_STATS": "0"})
    assert environment == {
        "PATH": "/bin", "VLLM_NO_USAGE_STATS": "0", "GROUPWISE_TOKEN": "s3cret"
    }  # fmt: skip


def test_without_vllm_the_install_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'groupwise\[vllm\]'"):
        make_engine(random_policy(), parse({"engine": "vllm"}))
    monkeypatch.setattr("sys.argv", ["groupwise", "serve", "vllm", "tiny"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "groupwise[vllm]" in capsys.readouterr().err


def test_mismatch_is_corrected_for_unless_the_recipe_says_otherwise() -> None:
    assert parse({"engine": "vllm"}).algorithm.mismatch == "token"
    dapo = parse({"engine": {"kind": "vllm"}, "algorithm": "dapo"}).algorithm
    assert (dapo.mismatch, dapo.surrogate.clip_edges()) == ("token", (0.8, 1.28))
    assert parse({"engine": "vllm", "algorithm": {"mismatch": "none"}}).algorithm.mismatch == "none"
    assert parse({}).algorithm.mismatch == "none"
    built = Config(engine=VllmEngineSettings(), algorithm=Objective(preset="gspo"))
    assert (built.algorithm.mismatch, built.algorithm.ratio) == ("token", "sequence")
    resolved = parse({"engine": "vllm"})
    assert parse(resolved.model_dump(mode="json")) == resolved


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.sleep=true"], "engine.sleep is for engine.kind=vllm"),
        (["engine=native", "engine.eager=true"], "engine.eager is for engine.kind=vllm"),
        (["engine=vlm"], "engine.kind: must be auto, .*did you mean 'vllm'"),
        (["place=servers"], "place.urls: field required"),
        (["place.urls=['a']"], "must look like http"),
        (["place.urls=['http://a:1','http://a:1']"], "may be named once"),
        (["engine=vllm", "place.urls=['http://a:1']", "engine.sleep=false"], "servers decide it"),
        (["engine=vllm", "place.count=1", "engine.sleep=false"], "servers decide it"),
        (["place={kind: processes, urls: ['http://a:1']}"], "urls is for place.kind=servers"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({}, overrides)


def test_a_tiny_run_needs_no_vllm() -> None:
    small = tiny(
        parse({"engine": {"kind": "vllm", "max_batch": 8}, "place": {"urls": ["http://a:1"]}})
    )
    assert (small.engine.kind, small.engine.max_batch) == ("auto", 8)
    assert (small.place.kind, small.timing.kind) == ("here", "in_turn")


def test_dora_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"adapter\.dora=false"):
        make_engine(random_policy(), parse({"engine": "vllm", "adapter": {"dora": True}}))


def test_a_finished_run_is_looked_at_without_its_servers(tmp_path: pathlib.Path) -> None:
    servers = ["engine.kind=vllm", "place.urls=['http://a:1']"]
    write_config(parse({}, servers), tmp_path / "config.yaml")
    plain, same = (config_for(str(tmp_path), None, None, more) for more in ([], servers))
    assert (plain.engine.kind, plain.place.kind) == ("auto", "here")
    assert same.engine.kind == "vllm" and same.place == Servers(urls=("http://a:1",))


SHOWN = re.findall(r"^(groupwise serve vllm.*)$", DOCS.read_text(), re.M)


@pytest.mark.parametrize("shown", SHOWN)
def test_commands_shown_are_understood(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags of vLLM's own are checked by vLLM itself: real_vllm.py gives some."""
    asked: list[tuple[Serving, str | None]] = []
    monkeypatch.setattr(command, "serve_vllm", lambda *given, **_: asked.append(given))
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)
    monkeypatch.setattr("sys.argv", shlex.split(shown))
    with pytest.raises(SystemExit) as left:
        main()
    ((serving, token),) = asked
    assert left.value.code == 0 and token == TOKEN and serving.model == "tiny"
    words = shown.split()
    assert ("--max-model-len" in words) == (serving.more == ("--max-model-len", "256"))
    assert ("--lora-rank" in words) == (serving.lora_rank == 16)


def test_an_adapters_folder_goes_with_the_server(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)
    endpoints = WeightsMiddleware(lambda *_: asyncio.sleep(0))
    endpoints.held = folder = tmp_path / "adapter"
    folder.mkdir()
    unused: Any = None
    asyncio.run(endpoints({"type": "lifespan"}, unused, unused))
    assert not folder.exists()
