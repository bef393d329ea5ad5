"""groupwise serve: models that training asks over HTTP."""

from typing import Annotated

import typer

from groupwise.cli.app import app

serve_app = typer.Typer(help="Models in processes of their own.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")


@serve_app.callback()
def serve() -> None:
    """Models in processes of their own."""


@serve_app.command()
def reference(
    model: Annotated[str, typer.Argument(help="What the recipe's `model:` says.")],
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: a free one.", min=0, max=65535)] = 8650,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GROUPWISE_TOKEN", help="What askers must know [default: a random one, printed]."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens in one forward pass.", min=1)] = 32768,
    queue: Annotated[int, typer.Option(help="Questions that may wait.", min=1)] = 64,
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    quantization: Annotated[
        str | None, typer.Option(help="int8 or nf4: weights in 8 or 4 bits.")
    ] = None,
) -> None:
    """Log-probs of a reference model over HTTP, for runs with reference.kind=server.

    groupwise serve reference smollm2 --port 8650
    """
    from groupwise.errors import ConfigError

    for name, value, known in (
        ("--device", device, ("auto", "cuda", "mps", "cpu")),
        ("--precision", precision, ("auto", "fp32", "bf16", "fp16")),
        ("--quantization", quantization, ("int8", "nf4")),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"{name} takes {', '.join(known)}, not {value!r}")
    from groupwise.serve.command import Listening, serve_reference

    def announce(address: str, made_up: str | None) -> None:
        typer.echo(address)
        if made_up is not None:
            typer.echo(f"export GROUPWISE_TOKEN={made_up}")

    listening = Listening(host, port, token or None, tokens, queue)
    serve_reference(model, device, precision, quantization, listening, announce)
