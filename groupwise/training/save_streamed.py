"""Write a model folder from a stream of weights: no process ever holds a whole sharded model."""

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from groupwise.training.tensor_files import write_files

FILE_BYTES = 2**30
"""Size of a model's files; several are in memory at once."""


def save_streamed(model: Any, weights: Iterable[tuple[str, Tensor]], folder: pathlib.Path) -> None:
    """What `model.save_pretrained(folder)` writes, with weights that the model does not have.

    The stream is read to its end whatever happens: other ranks take part in it.
    """
    stream = iter(weights)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(model, stream, folder)
    finally:
        for _ in stream:
            pass


def _write(model: Any, stream: Iterator[tuple[str, Tensor]], folder: pathlib.Path) -> None:
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = ((n, t) for n, t in model.state_dict().items() if n not in parameters)
    whole = itertools.chain(stream, buffers)
    on_cpu = ((name, tensor.detach().cpu()) for name, tensor in whole)
    files = write_files(on_cpu, lambda number: folder / f"{number}.part", FILE_BYTES)
    if len(files) == 1:
        (folder / "0.part").rename(folder / "model.safetensors")
        return
    where: dict[str, str] = {}
    for number, names in enumerate(files):
        target = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"{number}.part").rename(folder / target)
        where |= dict.fromkeys(names, target)
    total = sum(sum(names.values()) for names in files)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
