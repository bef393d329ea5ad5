"""Pictures of what learning.py recorded: `python benchmarks/learning_plots.py` draws them.

Against answers sampled, and against seconds: reward of the answers that were learned from, and
accuracy and format of greedy answers to the test problems. Several seeds are several lines.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent
IMAGES = ROOT.parent / "docs" / "images"
COLOURS = {"groupwise": "#4477aa", "trl": "#ee6677"}
TITLES = {
    "gsm8k": "Qwen2.5-Coder-1.5B-Instruct on GSM8K, 32 x 8 answers a step, one H200",
    "sums": "SmolLM2-135M-Instruct on three-term sums, 16 x 8 answers a step, one H200",
}
Line = dict[str, Any]


def read(what: str, side: str, results: pathlib.Path = ROOT / "results") -> dict[int, list[Line]]:
    """The recorded steps by seed."""
    runs: dict[int, list[Line]] = {}
    for text in (results / f"learning-{what}-{side}.jsonl").read_text().splitlines():
        line = json.loads(text)
        runs.setdefault(line["seed"], []).append(line)
    return runs


def draw(what: str, folder: pathlib.Path) -> pathlib.Path:
    curves: dict[str, Callable[[Line], float | None]] = {
        "reward (mean of 5 steps)": lambda line: line.get("reward"),
        "test accuracy": lambda line: line.get("test", {}).get("accuracy"),
    }
    if what == "gsm8k":
        curves["test format"] = lambda line: line.get("test", {}).get("format")
    figure, panels = plt.subplots(
        len(curves), 2, figsize=(8, 2.3 * len(curves)), layout="constrained", sharey="row"
    )
    for side, colour in COLOURS.items():
        for run in read(what, side).values():
            for axes_of_row, (label, value) in zip(panels, curves.items(), strict=True):
                points = [(line, value(line)) for line in run if value(line) is not None]
                heights = [height for _, height in points if height is not None]
                if label.startswith("reward"):
                    heights = _smooth(heights)
                for axes, x in zip(axes_of_row, ("samples", "seconds"), strict=True):
                    places = [line[x] for line, _ in points]
                    dots = None if label.startswith("reward") else "o"
                    axes.plot(places, heights, color=colour, marker=dots, markersize=3, label=side)
                axes_of_row[0].set_ylabel(label)
    for axes, x in zip(panels[-1], ("answers sampled", "seconds of training"), strict=True):
        axes.set_xlabel(x)
    handles, labels = panels[0][0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    panels[0][0].legend(list(once.values()), list(once), fontsize=8)
    figure.suptitle(TITLES[what], fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"learning-{what}.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _smooth(values: list[float], width: int = 5) -> list[float]:
    """The mean of each value and of those just before it."""
    windows = (values[max(0, i + 1 - width) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


if __name__ == "__main__":
    for name in TITLES:
        print(draw(name, IMAGES).relative_to(ROOT.parent))
