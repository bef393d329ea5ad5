"""Names for verifiers' alphabet-sort, where its own data set cannot be had.

    pip install names==0.3.0
    python benchmarks/alphabet_sort.py runs/names
    groupwise train benchmarks/alphabet_sort.yaml --trust-code

Drawn as often as the US census of 1990 has them, whose lists the package `names` carries. A row has
as many names as the longest episode needs, as the rows of kalomaze/alphabetic-arxiv-authors-it1 do.
"""

import json
import pathlib
import random
import sys

ROWS, NAMES_IN_ROW = 4000, 15


def main(folder: pathlib.Path) -> None:
    from names import FILES  # pyright: ignore[reportMissingImports]

    draw = random.Random(0)
    count = ROWS * NAMES_IN_ROW
    first = drawn(FILES["first:female"], count // 2, draw)
    first += drawn(FILES["first:male"], count // 2, draw)
    draw.shuffle(first)
    names = [f"{a} {b}" for a, b in zip(first, drawn(FILES["last"], count, draw), strict=True)]
    folder.mkdir(parents=True)
    with (folder / "train.jsonl").open("w") as file:
        for start in range(0, count, NAMES_IN_ROW):
            file.write(json.dumps({"names": names[start : start + NAMES_IN_ROW]}) + "\n")


def drawn(path: str, count: int, draw: random.Random) -> list[str]:
    """A line is `SMITH 1.006 1.006 1`: name, percent, percent so far, rank."""
    lines = [line.split() for line in pathlib.Path(path).read_text().splitlines()]
    names = [line[0].capitalize() for line in lines]
    return draw.choices(names, cum_weights=[float(line[2]) for line in lines], k=count)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
