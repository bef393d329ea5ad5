"""transformers' callbacks at transformers' moments, and what they ask for in return."""

from collections.abc import Sequence
from typing import Any

from transformers import (
    DefaultFlowCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_callback import ExportableState

from groupwise.compat.transformers import callback_handler
from groupwise.trl.config import GRPOConfig


class TrainerCallbacks:
    """`callbacks("on_step_end")` calls them all; `control` has what they want."""

    def __init__(
        self,
        args: GRPOConfig,
        given: Sequence[TrainerCallback | type[TrainerCallback]],
        model: Any,
        tokenizer: Any,
    ) -> None:
        shown = PrinterCallback if args.disable_tqdm else ProgressCallback
        reported = get_reporting_integration_callbacks(args.report_to)
        every = [DefaultFlowCallback, *reported, *given, shown]
        self.args = args
        self.handler = callback_handler(every, model, tokenizer)
        self.control = TrainerControl()
        stateful = [c for c in self.handler.callbacks if isinstance(c, ExportableState)]
        self.state = TrainerState(stateful_callbacks=[*stateful, self.control])  # pyright: ignore

    def __call__(self, event: str, **more: Any) -> TrainerControl:
        call = getattr(self.handler, event)
        self.control = call(self.args, self.state, self.control, **more)
        return self.control
