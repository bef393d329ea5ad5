"""groupwise eval and groupwise sample: what a trained model can do, in numbers and to read."""

import json
import pathlib
from typing import Annotated

import typer

from groupwise.cli.app import TrustCode, app, config_for


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a hub id, tiny ...")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    task: Annotated[str | None, typer.Option(help="Task kind, e.g. gsm8k.")] = None,
    data: Annotated[str | None, typer.Option(help="The task's data: a folder or file.")] = None,
    k: Annotated[int | None, typer.Option(help="Sampled answers per problem.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many problems.", min=1)] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the metrics here.")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Accuracy, pass@k, maj@k, format and lengths on held-out problems.

    groupwise eval runs/demo --k 8

    groupwise eval Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --data data/gsm8k --limit 100
    """
    typed = [*(overrides or []), *_eval_overrides(k, limit)]
    config = config_for(model, task, data, typed, trust_code=trust_code)
    from groupwise.load import load_parts
    from groupwise.tracking.console import console
    from groupwise.tracking.report import metrics_table

    with load_parts(config) as parts, console.status("evaluating"):
        metrics = parts.evaluate("test").metrics
    console.print(metrics_table(metrics, f"{model} on {config.task.kind} (test)"))
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(metrics, indent=2) + "\n")


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a hub id, tiny ...")],
    prompt: Annotated[
        str | None, typer.Argument(help="A question.", show_default="held-out ones")
    ] = None,
    n: Annotated[int, typer.Option(help="Answers (or problems, without a prompt).", min=1)] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    trust_code: TrustCode = False,
) -> None:
    """See answers: to your prompt, or to held-out problems with their verdicts.

    groupwise sample runs/demo

    groupwise sample smollm2 "Which is larger, 17 or 71?" --temperature 0
    """
    config = config_for(model, None, None, [f"seed={seed}"], trust_code=trust_code)
    from groupwise.sample import print_samples

    print_samples(config, prompt, n, temperature)


def _eval_overrides(k: int | None, limit: int | None) -> list[str]:
    found = {"eval.k": k, "eval.problems": limit, "task.test_size": limit}
    return [f"{key}={value}" for key, value in found.items() if value is not None]
