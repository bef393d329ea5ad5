"""Writes groupwise/tasks/samples/: a few problems in the form of each public dataset.

`--tiny` uses them where a recipe's data would come from the hub. The problems are sums of the kind
that the embedded model knows, so that some of its answers are right and it has something to learn.

    python scripts/make_sample_problems.py
"""

import json
import pathlib
import random
from collections.abc import Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).parent.parent / "groupwise" / "tasks" / "samples"
ASKED = "Work it out in <think> </think>, then give the result in <answer> </answer>."
"""The words that the embedded model was made with: in others it hardly ever stops."""
SIZES = {"train": 32, "dev": 8, "test": 8}
LETTERS = "ABCDE"
COUNTDOWN = {"train": (1, 2, 3, 4, 5, 6, 8), "validation": (9, 10, 11, 12), "test": (7, 13, 14, 15)}
"""4*(3+n): `--tiny` prefills `4*(3+`, and the embedded model, which cannot search, ends some."""


def files() -> dict[str, str]:
    """Path below the folder -> its text. The same at every call."""
    draw = random.Random(0)
    terms = draw.sample([(a, b, c) for a in range(2, 60) for b in range(2, 60) for c in (3, 7)], 48)
    found: dict[str, str] = {}
    start = 0
    for split, size in SIZES.items():
        sums, start = terms[start : start + size], start + size
        rows = [_row(draw, *numbers) for numbers in sums]
        for dataset, columns in (("gsm8k", _gsm8k), ("math", _math)):
            if split != "dev":
                found[f"{dataset}/{split}.jsonl"] = _lines([columns(**row) for row in rows])
        for dataset, columns in (("aqua_rat", _aqua_rat), ("mathqa", _mathqa)):
            found[f"{dataset}/{split}.jsonl"] = _lines([columns(**row) for row in rows])
        if split == "train":
            found["prompts.jsonl"] = _lines(
                [{"prompt": row["question"], "answer": str(row["answer"])} for row in rows]
            )
    for split, numbers in COUNTDOWN.items():
        found[f"countdown/{split}.jsonl"] = _lines(
            [{"nums": [4, 3, n], "target": 4 * (3 + n)} for n in numbers]
        )
    return found


def _row(draw: random.Random, a: int, b: int, c: int) -> dict[str, Any]:
    answer = a + b + c
    options = sorted({answer, answer + 1, answer - 1, answer + 10, answer - 10})
    draw.shuffle(options)
    working = f"{a}+{b}={a + b}, {a + b}+{c}={answer}"
    return {
        "question": f"What is {a}+{b}+{c}? {ASKED}",
        "working": working,
        "answer": answer,
        "options": options,
    }


def _gsm8k(question: str, working: str, answer: int, **_: Any) -> dict[str, Any]:
    return {"question": question, "answer": f"{working}\n#### {answer}"}


def _math(question: str, working: str, answer: int, **_: Any) -> dict[str, Any]:
    solution = f"{working}, so \\boxed{{{answer}}}."
    return {"problem": question, "solution": solution, "level": "Level 1", "type": "Prealgebra"}


def _aqua_rat(question: str, working: str, answer: int, options: list[int]) -> dict[str, Any]:
    shown = [f"{letter}){value}" for letter, value in zip(LETTERS, options, strict=True)]
    correct = LETTERS[options.index(answer)]
    return {"question": question, "options": shown, "rationale": working, "correct": correct}


def _mathqa(question: str, working: str, answer: int, options: list[int]) -> dict[str, Any]:
    shown = [f"{letter} ) {value}" for letter, value in zip("abcde", options, strict=True)]
    correct = "abcde"[options.index(answer)]
    return {
        "Problem": question,
        "options": " , ".join(shown),
        "Rationale": working,
        "correct": correct,
    }


def _lines(rows: list[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for name, text in files().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
