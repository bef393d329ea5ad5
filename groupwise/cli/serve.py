"""groupwise serve: models that training asks over HTTP."""

import os
from typing import Annotated, Literal

import typer

from groupwise.cli.app import app

serve_app = typer.Typer(help="Servers that training asks over HTTP.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

Model = Annotated[str, typer.Argument(help="The same as `model:` in the recipe.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0: a free one.", min=0, max=65535)]
Device = Annotated[Literal["auto", "cuda", "mps", "cpu"], typer.Option(help="Device of the model.")]
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option(help="Of weights and activations."),
]
UntilEof = Annotated[bool, typer.Option("--until-eof", help="Stop when standard input is closed.")]
Quantization = Annotated[
    Literal["int8", "nf4"] | None, typer.Option(help="Weights in 8 or 4 bits.")
]


@serve_app.callback()
def serve() -> None:
    """Servers that training asks over HTTP."""


@serve_app.command()
def reference(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8650,
    tokens: Annotated[int, typer.Option(help="Most tokens in one forward pass.", min=1)] = 32768,
    queue: Annotated[int, typer.Option(help="Most requests that may wait.", min=1)] = 64,
    device: Device = "auto",
    precision: Precision = "auto",
    quantization: Quantization = None,
    until_eof: UntilEof = False,
) -> None:
    """Log-probs of a reference model over HTTP, for runs with reference.kind=server.

    groupwise serve reference smollm2 --port 8650
    """
    from groupwise.remote.reference_server import serve_reference
    from groupwise.remote.running import Listening

    listening = Listening(host, port, _token(), queue, until_eof)
    serve_reference(model, device, precision, quantization, tokens, listening, _announce)


@serve_app.command()
def rollouts(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8660,
    queue: Annotated[int, typer.Option(help="Most requests that may wait.", min=1)] = 512,
    device: Device = "auto",
    precision: Precision = "auto",
    quantization: Quantization = None,
    until_eof: UntilEof = False,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run marked engines that a run names."),
    ] = False,
) -> None:
    """Sample answers for runs with place.urls.

    groupwise serve rollouts smollm2 --port 8660
    """
    from groupwise.load import worker_engine
    from groupwise.policy.load import Policy
    from groupwise.remote.running import Listening
    from groupwise.remote.worker_payload import RunSettings
    from groupwise.remote.worker_server import serve_rollouts
    from groupwise.rollout.engine import Engine

    def engine(policy: Policy, run: RunSettings) -> Engine:
        return worker_engine(policy, run, trust_code=trust_code)

    listening = Listening(host, port, _token(), queue, until_eof)
    serve_rollouts(model, device, precision, quantization, engine, listening, _announce)


@serve_app.command()
def gateway(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8670,
    temperature: Annotated[float, typer.Option(help="Temperature of every reply.", min=0.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one reply.", min=1)] = 1024,
    seed: Annotated[
        int, typer.Option(help="The same seed and session name: the same replies.")
    ] = 0,
    override_sampling: Annotated[
        bool,
        typer.Option(
            "--override-sampling",
            help="Sample with these settings where a request asks for others, not refuse it.",
        ),
    ] = False,
    queue: Annotated[int, typer.Option(help="Most requests in progress.", min=1)] = 512,
    device: Device = "auto",
    precision: Precision = "auto",
    quantization: Quantization = None,
    until_eof: UntilEof = False,
) -> None:
    """A model behind an OpenAI-compatible URL that records exact tokens by session.

    groupwise serve gateway smollm2 --port 8670

    With OPENAI_BASE_URL=http://127.0.0.1:8670/s/NAME/v1 an agent's requests are the session NAME;
    GET /s/NAME gives its tokens, log-probs and messages.
    """
    from groupwise.config import Config
    from groupwise.environments.gateway_server import GatewaySettings, serve_gateway
    from groupwise.load import make_engine
    from groupwise.remote.running import Listening
    from groupwise.types import Sampling

    settings = GatewaySettings(model, Sampling(max_tokens, temperature), seed, override_sampling)
    listening = Listening(host, port, _token(), queue, until_eof)
    serve_gateway(
        settings,
        device,
        precision,
        quantization,
        lambda policy: make_engine(policy, Config()),
        listening,
        _announce,
    )


def _token() -> str | None:
    """From the environment alone: a command line can be read by every user of the machine."""
    return os.environ.get("GROUPWISE_TOKEN") or None


def _announce(address: str, made_up: str | None) -> None:
    typer.echo(address)
    if made_up is not None:
        typer.echo(f"export GROUPWISE_TOKEN={made_up}")


@serve_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def vllm(
    context: typer.Context,
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    precision: Precision = "auto",
    lora_rank: Annotated[
        int, typer.Option(help="Take LoRA adapters of up to this rank (0: full weights).", min=0)
    ] = 0,
    until_eof: UntilEof = False,
) -> None:
    """`vllm serve` as runs with engine.kind=vllm need it. Flags of vLLM's own are passed on.

    groupwise serve vllm Qwen/Qwen2.5-3B --max-model-len 2048 --tensor-parallel-size 2
    """
    from groupwise.remote.vllm_command import Serving, serve_vllm

    more = tuple(context.args)
    serving = Serving(model, host, port, precision, lora_rank, more)
    serve_vllm(serving, _token(), until_eof=until_eof)
