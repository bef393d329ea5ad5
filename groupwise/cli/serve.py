"""groupwise serve: models that training asks over HTTP."""

from typing import Annotated

import typer

from groupwise.cli.app import app

serve_app = typer.Typer(help="Models in processes of their own.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

Model = Annotated[str, typer.Argument(help="What the recipe's `model:` says.")]
Host = Annotated[str, typer.Option(help="Where to listen.")]
Port = Annotated[int, typer.Option(help="0: a free one.", min=0, max=65535)]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="GROUPWISE_TOKEN",
        help="What clients must know.",
        show_default="a random one, printed",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")]
Quantization = Annotated[str | None, typer.Option(help="int8 or nf4: weights in 8 or 4 bits.")]


@serve_app.callback()
def serve() -> None:
    """Models in processes of their own."""


@serve_app.command()
def reference(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8650,
    token: Token = None,
    tokens: Annotated[int, typer.Option(help="Tokens in one forward pass.", min=1)] = 32768,
    queue: Annotated[int, typer.Option(help="Requests that may wait.", min=1)] = 64,
    device: Device = "auto",
    precision: Precision = "auto",
    quantization: Quantization = None,
) -> None:
    """Log-probs of a reference model over HTTP, for runs with reference.kind=server.

    groupwise serve reference smollm2 --port 8650
    """
    _check_words(device, precision, quantization)
    from groupwise.remote.reference_server import serve_reference
    from groupwise.remote.running import Listening

    listening = Listening(host, port, token or None, queue)
    serve_reference(model, device, precision, quantization, tokens, listening, _announce)


@serve_app.command()
def rollouts(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8660,
    token: Token = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait.", min=1)] = 64,
    device: Device = "auto",
    precision: Precision = "auto",
    quantization: Quantization = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Answers sampled in a process of their own, for runs with workers.urls.

    groupwise serve rollouts smollm2 --port 8660
    """
    _check_words(device, precision, quantization)
    from groupwise.config import Config
    from groupwise.load import make_engine
    from groupwise.policy.load import Policy
    from groupwise.remote.running import Listening
    from groupwise.remote.worker_payload import RunSettings
    from groupwise.remote.worker_server import serve_rollouts
    from groupwise.rollout.engine import Engine

    def engine(policy: Policy, run: RunSettings) -> Engine:
        return make_engine(policy, Config(engine=run.engine, compile=run.compile))

    listening = Listening(host, port, token or None, queue, until_eof)
    serve_rollouts(model, device, precision, quantization, engine, listening, _announce)


def _check_words(device: str, precision: str, quantization: str | None) -> None:
    from groupwise.errors import ConfigError

    for name, value, known in (
        ("--device", device, ("auto", "cuda", "mps", "cpu")),
        ("--precision", precision, ("auto", "fp32", "bf16", "fp16")),
        ("--quantization", quantization, ("int8", "nf4")),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"{name} takes {', '.join(known)}, not {value!r}")


def _announce(address: str, made_up: str | None) -> None:
    typer.echo(address)
    if made_up is not None:
        typer.echo(f"export GROUPWISE_TOKEN={made_up}")


@serve_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def vllm(
    context: typer.Context,
    model: Model,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    token: Token = None,
    precision: Precision = "auto",
    lora_rank: Annotated[
        int, typer.Option(help="Take adapters of up to this rank instead of all weights.", min=0)
    ] = 0,
) -> None:
    """`vllm serve` as runs with engine.kind=vllm need it. Flags of vLLM's own are passed on.

    groupwise serve vllm Qwen/Qwen2.5-3B --max-model-len 2048 --tensor-parallel-size 2
    """
    from groupwise.errors import ConfigError
    from groupwise.remote.vllm_command import DTYPES, Serving, serve_vllm

    if precision not in DTYPES:
        raise ConfigError(f"--precision takes {', '.join(DTYPES)}, not {precision!r}")
    more = tuple(context.args)
    serve_vllm(Serving(model, host, port, precision, lora_rank, more), token or None)
