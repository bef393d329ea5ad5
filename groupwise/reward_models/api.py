"""The whole of `groupwise reward fit`, `score` and `eval`: from files to files."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from groupwise.errors import ConfigError, DataError, ModelError
from groupwise.policy.load import pick_device
from groupwise.reward_models.encode import as_text
from groupwise.reward_models.examples import hold_out, read_answers, read_examples
from groupwise.reward_models.fit import FitSettings, fit, measure
from groupwise.reward_models.model import (
    KINDS,
    TINY_ENCODER,
    Kind,
    load_reward_model,
    new_reward_model,
    save_reward_model,
)
from groupwise.reward_models.predict import score_answers
from groupwise.reward_models.quality import Quality
from groupwise.reward_models.reward import mean_wins_of
from groupwise.tracking.whole import writing

FROM_SCRATCH_LR = 2e-3
PRETRAINED_LR = 2e-5


@dataclass(frozen=True)
class FitPlan:
    """What to fit. `tokenizer`: whose tokens a tiny-encoder reads (None: the run's, or tiny's)."""

    source: str
    kind: Kind
    base: str = TINY_ENCODER
    tokenizer: str | None = None
    max_tokens: int | None = None
    validation: float = 0.15
    epochs: int = 10
    batch_size: int = 32
    lr: float | None = None
    patience: int = 3
    seed: int = 0
    device: str = "auto"

    @property
    def settings(self) -> FitSettings:
        own = FROM_SCRATCH_LR if self.base == TINY_ENCODER else PRETRAINED_LR
        return FitSettings(
            self.epochs, self.batch_size, self.lr or own, patience=self.patience, seed=self.seed
        )


def checked_kind(name: str) -> Kind:
    for kind in KINDS:
        if kind == name:
            return kind
    raise ConfigError(f"--kind is {name!r}; it must be one of {', '.join(KINDS)}")


def fit_to_folder(
    plan: FitPlan,
    out: str,
    progress: Callable[[float, str], None] = lambda share, line: None,
    *,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Fit, write the Hugging Face folder `out` with report.json, and return that report."""
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{out} is not empty; give --out a new folder")
    train, validation = hold_out(read_examples(plan.source, trust_code=trust_code), plan.validation)
    is_run = (Path(plan.source) / "config.yaml").is_file()
    reward_model = new_reward_model(
        plan.kind,
        plan.base,
        tokenizer=plan.tokenizer or (plan.source if is_run else "tiny"),
        max_tokens=plan.max_tokens,
        seed=plan.seed,
    )
    reward_model.model.to(pick_device(plan.device))
    fitted = fit(reward_model, train, validation, plan.settings, progress)
    report = {
        **asdict(plan),
        "lr": plan.settings.lr,
        "train": len(train),
        "validation_examples": len(validation),
        "validation_problems": len(validation.problems),
        **fitted.json(),
    }
    with writing(folder):
        save_reward_model(reward_model, folder)
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def score_file(model: str, source: str, out: str, *, batch_size: int, device: str) -> int:
    """Write every line of `source` with its `score` to `out`; returns how many.

    A preference model scores an answer by its mean win over the file's other answers to its prompt.
    """
    lines = read_answers(source)
    reward_model = load_reward_model(model, pick_device(device))
    prompts, answers = [prompt for _, prompt, _ in lines], [answer for _, _, answer in lines]
    if reward_model.kind == "preference":
        scores: list[float] = [0.5] * len(lines)
        groups: dict[str, list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(as_text(prompt), []).append(index)
        for members in groups.values():
            texts = [answers[i] for i in members]
            won = mean_wins_of(reward_model, prompts[members[0]], texts, batch_size)
            for index, score in zip(members, won, strict=True):
                scores[index] = score
    else:
        scores = list(score_answers(reward_model, prompts, answers, batch_size=batch_size))
    unfinished = Path(f"{out}.new")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for (columns, _, _), score in zip(lines, scores, strict=True):
                file.write(json.dumps({**columns, "score": score}) + "\n")
        os.replace(unfinished, out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror}") from error
    return len(lines)


def eval_on(
    model: str, source: str, *, batch_size: int, device: str, trust_code: bool = False
) -> Quality:
    """How well a reward model agrees with labelled data."""
    examples = read_examples(source, trust_code=trust_code)
    reward_model = load_reward_model(model, pick_device(device))
    return measure(reward_model, examples, batch_size)
