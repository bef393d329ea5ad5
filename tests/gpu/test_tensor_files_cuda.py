"""Tensors of a GPU go through buffers that several files use one after the other."""

import pathlib

import pytest
import torch
from safetensors.torch import load_file

from groupwise.training import tensor_files
from groupwise.training.tensor_files import write_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_tensors_of_a_gpu_are_written_as_they_are(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 5000)
    monkeypatch.setattr(tensor_files, "WRITERS", 2)
    kinds = [torch.float32, torch.bfloat16, torch.uint8]
    given = {
        f"t{n}": (100 * torch.rand(n % 37 + 1, n % 11 + 1, device="cuda")).to(kinds[n % 3])
        for n in range(300)
    }
    given["turned"] = torch.rand(7, 5, device="cuda").t()
    given["empty"] = torch.rand(0, 4, device="cuda")
    given["on_cpu"] = torch.rand(3)
    files = write_files(given.items(), lambda n: tmp_path / f"{n}.safetensors")
    written = {}
    for number in range(len(files)):
        written |= load_file(tmp_path / f"{number}.safetensors")
    assert len(files) > 10 and written.keys() == given.keys()
    assert all(torch.equal(written[name], given[name].cpu()) for name in given)
