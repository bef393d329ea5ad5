"""What `groupwise.train` gives back: a run that has ended, with its model, numbers and pages."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from markupsafe import Markup, escape

from groupwise.errors import MissingExtraError
from groupwise.policy.adapters import is_adapter_folder
from groupwise.policy.in_memory import ModelInMemory
from groupwise.policy.pretrained import from_pretrained
from groupwise.report.curves import drawn, series
from groupwise.report.terminal import before_after_rows
from groupwise.tracking.run import read_metrics

SVG = '<svg style="max-width: 100%; height: auto"'


@dataclass(frozen=True)
class Result:
    """`summary` is summary.json: `status`, `steps`, `seconds`, `before`, `after`, `findings`."""

    folder: pathlib.Path
    summary: Mapping[str, Any]
    trained: ModelInMemory | None = field(default=None, repr=False)
    """The model that was given and has been trained."""

    @property
    def model_folder(self) -> pathlib.Path:
        """The trained model as a Hugging Face folder (of an adapter, the adapter alone)."""
        return self.folder / "model"

    @cached_property
    def model(self) -> Any:
        """The trained model; read from `model_folder` at first use, if it was not given as one."""
        if self.trained is not None:
            return self.trained.model
        if is_adapter_folder(self.model_folder):
            from peft import AutoPeftModelForCausalLM

            return from_pretrained(AutoPeftModelForCausalLM, self.model_folder)
        from transformers import AutoModelForCausalLM

        return from_pretrained(AutoModelForCausalLM, self.model_folder)

    @cached_property
    def tokenizer(self) -> Any:
        if self.trained is not None:
            return self.trained.tokenizer
        from transformers import AutoTokenizer

        return from_pretrained(AutoTokenizer, self.model_folder)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One dict a step, as in metrics.jsonl."""
        return read_metrics(self.folder)

    @property
    def history(self) -> Any:
        """The steps' metrics as a pandas DataFrame, with `step` as its index."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "datasets") from error
        return pandas.DataFrame(self.metrics).set_index("step")

    @property
    def report(self) -> pathlib.Path:
        """The run on one page."""
        return self.folder / "report.html"

    @property
    def view_command(self) -> str:
        """What shows the run in a browser, answers token by token."""
        return f"groupwise view {self.folder}"

    def _repr_html_(self) -> str:
        """For notebooks: the curves, before and after, findings and where the rest is."""
        panels = {
            "reward": series(self.metrics, ("reward", "rewards/*")),
            "accuracy": series(self.metrics, ("accuracy", "eval/accuracy"), self.summary["before"]),
        }
        panels = {title: lines for title, lines in panels.items() if lines}
        chart = drawn(panels, "svg").decode() if panels else ""
        cells = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in before_after_rows(self.summary["before"], self.summary["after"])
        )
        findings = "".join(
            f"<p><b>{escape(finding['title'])}</b> {escape(finding['advice'])}</p>"
            for finding in self.summary.get("findings", ())
        )
        return Markup(
            f"<p><b>{escape(self.folder)}</b>: {escape(self.summary.get('status', ''))}, "
            f"{self.summary['steps']} steps. "
            f'<a href="{escape(self.report)}">report</a>, '
            f"<code>{escape(self.view_command)}</code></p>"
            f"{chart[chart.index('<svg') :].replace('<svg', SVG, 1) if chart else ''}"
            f"<table><tr><th></th><th>before</th><th>after</th><th>change</th></tr>{cells}</table>"
            f"{findings}"
        )
