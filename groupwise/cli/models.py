"""groupwise eval, sample, export and import: a trained model in numbers, to read, and elsewhere."""

import pathlib
from typing import Annotated

import typer

from groupwise.cli import options
from groupwise.cli.app import app, config_for, say_loading
from groupwise.errors import ConfigError


@app.command("eval")
def evaluate(
    model: options.Model,
    overrides: options.Overrides = None,
    task: options.Task = None,
    data: options.Data = None,
    k: Annotated[int | None, typer.Option(help="Sampled answers per problem.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many problems.", min=1)] = None,
    json_file: options.JsonFile = None,
    trust_code: options.TrustCode = False,
) -> None:
    """Accuracy, pass@k, maj@k, format and lengths on test problems.

    groupwise eval runs/demo --k 8

    groupwise eval Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --data data/gsm8k --limit 100
    """
    limits = {"eval.k": k, "eval.problems": limit, "task.test_size": limit}
    typed = [f"{key}={value}" for key, value in limits.items() if value is not None]
    config = config_for(model, task, data, [*(overrides or []), *typed], trust_code=trust_code)
    say_loading(model)
    from groupwise.evaluate import evaluate as evaluate_parts
    from groupwise.load import load_parts
    from groupwise.report.terminal import metrics_table
    from groupwise.tracking.console import console

    with load_parts(config) as parts, console.status("evaluating"):
        metrics = evaluate_parts(parts, "test").metrics
    console.print(metrics_table(metrics, f"{model} on {config.task.kind} (test)"))
    options.write_json(json_file, metrics)


@app.command()
def sample(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(help="A question.", show_default="test problems")
    ] = None,
    n: Annotated[int, typer.Option(help="Answers (or problems, without a prompt).", min=1)] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    trust_code: options.TrustCode = False,
) -> None:
    """See answers: to your prompt, or to test problems with their verdicts.

    groupwise sample runs/demo

    groupwise sample smollm2 "Which is larger, 17 or 71?" --temperature 0
    """
    config = config_for(model, None, None, [f"seed={seed}"], trust_code=trust_code)
    say_loading(model)
    from groupwise.samples.show import print_samples

    print_samples(config, prompt, n, temperature)


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or a model folder.")],
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder, or script with --to.", show_default="RUN/export, RUN/export_TO.py"
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter into the weights.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(help="trl or neuron: a script that trains the same there.")
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(help="--to neuron: cores that share the model.", min=1)
    ] = 8,
    push: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload to this private hub repository.")
    ] = None,
    trust_code: options.TrustCode = False,
) -> None:
    """Write a run's model to a folder of its own, upload it, or write a script for TRL.

    groupwise export runs/demo --merge --out merged

    groupwise export runs/demo --to trl --out train_with_trl.py
    """
    if to is not None:
        if merge or push:
            raise ConfigError("--to writes a script: leave out --merge and --push")
        _script(model, to, out, tensor_parallel, trust_code)
        return
    from groupwise.interop.folder import export_model, push_model

    target = pathlib.Path(out) if out else pathlib.Path(model) / "export"
    merged = export_model(model, target, merge=merge)
    what = "the adapter and its model, merged" if merged else "the model as it was saved"
    typer.echo(f"{target}: {what}")
    if push:
        typer.echo(push_model(target, push))


def _script(run: str, to: str, out: str | None, tensor_parallel: int, trust_code: bool) -> None:
    if to not in ("trl", "neuron"):
        raise ConfigError(f"--to takes trl or neuron, not {to!r}")
    target = pathlib.Path(out) if out else pathlib.Path(run) / f"export_{to}.py"
    if target.suffix != ".py":
        raise ConfigError(f"--out {target} must be a script: name it {target}.py")
    if to == "trl":
        from groupwise.interop.trl import export_trl

        lost = export_trl(run, target, trust_code=trust_code)
    else:
        from groupwise.interop.neuron import export_neuron

        lost = export_neuron(run, target, tensor_parallel, trust_code=trust_code)
    for line in lost:
        typer.echo(f"not expressed: {line}")
    typer.echo(f"{target} and {target.with_suffix('.jsonl').name}")


@app.command("import")
def import_settings(
    file: Annotated[str, typer.Argument(help="A TRL GRPOConfig: YAML or JSON.")],
    out: Annotated[
        str | None, typer.Option(help="Recipe.", show_default="FILE-recipe.yaml")
    ] = None,
) -> None:
    """A TRL GRPOConfig becomes a recipe; says what has no counterpart and which defaults differ.

    groupwise import grpo_config.yaml --out mine.yaml
    """
    from groupwise.interop.import_trl import from_trl, read_fields, recipe_text

    source = pathlib.Path(file)
    imported = from_trl(read_fields(source))
    target = pathlib.Path(out) if out else source.with_name(f"{source.stem}-recipe.yaml")
    if target.resolve() == source.resolve():
        raise ConfigError(f"--out {out} is the file that is read: name another")
    options.write_file(target, recipe_text(imported, source.name))
    for title, lines in (
        ("no counterpart", imported.lost.values()),
        ("TRL's default, written down", imported.defaults),
        ("note", imported.notes),
    ):
        for line in lines:
            typer.echo(f"{title}: {line}")
    typer.echo(f"{target}: look it over, then  groupwise check {target}")
