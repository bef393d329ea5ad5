"""`groupwise train` on a machine with several GPUs."""

import pytest

from groupwise.cli import train as command
from groupwise.distributed.gpus import processes_for
from groupwise.errors import ConfigError
from groupwise.recipe import load_recipe


@pytest.mark.parametrize(
    ("gpus", "device", "prompts", "here", "count", "said"),
    [
        (0, "auto", 8, True, 1, ""),
        (1, "auto", 8, True, 1, ""),
        (4, "cpu", 8, True, 1, ""),
        (4, "auto", 8, True, 4, "4 GPUs: training with all of them"),
        (8, "cuda", 4, True, 4, "8 GPUs: training with 4"),
        (4, "auto", 8, False, 1, "4 GPUs: one trains"),
    ],
)
def test_every_gpu_is_used_where_nobody_says(
    gpus: int, device: str, prompts: int, here: bool, count: int, said: str
) -> None:
    processes, line = processes_for(gpus, device, prompts, here)
    assert processes == count and line.startswith(said) and bool(line) == bool(said)


def test_the_command_starts_one_process_for_each_gpu_and_one_when_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "count_gpus", lambda: 4)
    monkeypatch.delenv("RANK", raising=False)
    config = load_recipe("demo")
    assert command._processes("auto", config) == 4
    assert "4 GPUs" in capsys.readouterr().out
    assert command._processes("1", config) == 1 and not capsys.readouterr().out
    monkeypatch.setenv("RANK", "2")
    assert command._processes("auto", config) == 1
    for wrong in ("0", "many", "-1"):
        with pytest.raises(ConfigError, match="auto or a number"):
            command._processes(wrong, config)
