import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from groupwise.training import tensor_files
from groupwise.training.tensor_files import write_files


def tensors(count: int) -> dict[str, Tensor]:
    made = {f"t{n}": torch.full((n + 1, 3), float(n)) for n in range(count)}
    return made | {"bf16": torch.ones(7, dtype=torch.bfloat16), "number": torch.tensor(5.0)}


def read_all(folder: pathlib.Path) -> dict[str, Tensor]:
    return {name: t for path in sorted(folder.iterdir()) for name, t in load_file(path).items()}


@pytest.mark.parametrize("limit", [1, 100, 10**9])
def test_files_hold_all_tensors_and_no_more_bytes_than_asked_for(
    limit: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "FILE_BYTES", limit)
    given = tensors(20)
    files = write_files(given.items(), lambda n: tmp_path / f"{n}.safetensors")
    assert [set(load_file(tmp_path / f"{n}.safetensors")) for n in range(len(files))] == [
        set(file) for file in files
    ]
    assert all(sum(file.values()) <= limit or len(file) == 1 for file in files)
    written = read_all(tmp_path)
    assert written.keys() == given.keys()
    assert all(torch.equal(written[name], given[name]) for name in given)


def test_no_tensors_are_one_empty_file(tmp_path: pathlib.Path) -> None:
    assert write_files([], lambda n: tmp_path / f"{n}.safetensors") == [{}]
    assert load_file(tmp_path / "0.safetensors") == {}


def test_tensors_that_are_not_a_row_in_memory_are_written_as_they_look(
    tmp_path: pathlib.Path,
) -> None:
    given = torch.arange(12.0).view(3, 4).t()
    write_files([("turned", given)], lambda n: tmp_path / f"{n}.safetensors")
    assert torch.equal(read_all(tmp_path)["turned"], given)


def test_a_failure_reads_the_stream_to_its_end_and_is_raised(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 1)
    monkeypatch.setattr(tensor_files, "WRITERS", 2)
    seen: list[str] = []
    written: list[str] = []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors(40).items():
            seen.append(name)
            yield name, tensor

    def save(part: dict[str, Tensor], path: Any, **_: Any) -> None:
        written.append(path.name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", save)
    with pytest.raises(OSError, match="No space left"):
        write_files(stream(), lambda n: tmp_path / f"{n}.safetensors")
    assert len(seen) == 42
    assert len(written) < 10  # it does not go on writing to a full disk


def test_files_are_written_at_the_same_time_but_not_more_than_writers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 1)
    monkeypatch.setattr(tensor_files, "WRITERS", 3)
    original, together = tensor_files.save_file, threading.Barrier(3)
    lock, now, most = threading.Lock(), 0, 0

    def save(part: dict[str, Tensor], path: Any, **options: Any) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(30)  # three have to be here before one goes on
        original(part, path, **options)
        with lock:
            now -= 1

    monkeypatch.setattr(tensor_files, "save_file", save)
    given = {f"t{n}": torch.full((2,), float(n)) for n in range(9)}
    write_files(given.items(), lambda n: tmp_path / f"{n}.safetensors")
    assert most == 3
    assert read_all(tmp_path).keys() == given.keys()
