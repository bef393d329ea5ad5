"""What `groupwise check` prints."""

from groupwise.check.batch_plan import print_plan, print_settings
from groupwise.check.costs import print_costs
from groupwise.check.trial import make_trial
from groupwise.check.verdicts import Verdict, verdicts
from groupwise.config import Config
from groupwise.load import load_parts
from groupwise.tracking.console import console, printable
from groupwise.training.api import check_plan


def print_check(
    name: str, config: Config, *, dry: bool = False, gpu: str | None = None, gpus: int = 1
) -> None:
    """What it costs on paper; what it says; unless `dry`, what a trial of a few problems foretells.

    For a GPU that is not here, for several, or for a mere shape there is the paper alone.
    """
    check_plan(config)
    if not print_costs(config, gpu, gpus):
        return
    console.print()
    with load_parts(config) as parts:
        print_plan(name, parts)
        if dry:
            print_settings(config)
            return
        with console.status("a trial step"):
            trial = make_trial(parts)
    count = sum(len(group.completions) for group in trial.groups)
    console.print(f"\na trial: {len(trial.groups)} problems, {count} answers, one update")
    found = verdicts(trial)
    for verdict in found:
        print_verdict(verdict)
    warnings = sum(verdict.fix is not None for verdict in found)
    console.print(
        f"\n{warnings} warning{'s' * (warnings != 1)}" if warnings else "\nready to train"
    )


def print_verdict(verdict: Verdict) -> None:
    mark = "[green]ok     [/]" if verdict.fix is None else "[yellow]warning[/]"
    name = printable(verdict.name)
    console.print(f"{mark} [bold]{name}[/]: {printable(verdict.text)}", highlight=False)
    if verdict.fix is not None:
        console.print(f"        try: {printable(verdict.fix)}", highlight=False)
