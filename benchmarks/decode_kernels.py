"""The two kernels of a decode step on a GPU, against the time that reading their input takes.

    python benchmarks/decode_kernels.py

Attention: the keys and values of one layer of Qwen2.5-0.5B, -1.5B and -3B, rows of random lengths,
pages in random order. Sampling: logits over 151,936 tokens. Each is a CUDA graph that goes through
more data than the cache holds; the median of some replays counts.
"""

import random
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from groupwise.rollout.native.decode_kernel import decode_attention
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.types import Sampling

PAGE, VOCAB = 64, 151_936
BYTES = 400e6
"""Read in one replay at least: several times the cache."""
ATTENTION = [
    ("0.5B", 14, 64, 256, (200, 456)),
    ("1.5B", 12, 128, 128, (200, 1200)),
    ("1.5B", 12, 128, 64, (1500, 2500)),
    ("1.5B", 12, 128, 16, (3700, 3900)),
    ("1.5B", 12, 128, 1, (4000, 4000)),
    ("3B", 16, 128, 128, (3500, 4200)),
]
"""Model, query heads (two key heads), head size, rows, and between which lengths they are."""


def microseconds(run: Callable[[], object], replays: int = 10) -> float:
    """Of one replay of what `run` launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes per microsecond that reading and writing large tensors moves."""
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: torch.neg(source, out=target))


def attention(heads: int, size: int, kv_lens: list[int]) -> tuple[float, float]:
    """Microseconds of a layer, and bytes of keys and values that it reads."""
    rows, width = len(kv_lens), max(kv_lens) // PAGE + 1
    read = sum(kv_lens) * 2 * size * 2 * 2
    layers = [random_tensor(2, rows * width, 2, PAGE, size) for _ in range(int(BYTES / read) + 1)]
    order = torch.randperm(rows * width, device="cuda").view(rows, width)
    q, k, v = random_tensor(rows, heads + 4, 1, size).split([heads, 2, 2], dim=1)
    where = order * layers[0][0, 0].numel(), torch.tensor(kv_lens, device="cuda")

    def run() -> None:
        for keys, values in layers:
            decode_attention(q, k, v, keys, values, *where, size**-0.5, 0, 0.0)

    return microseconds(run) / len(layers), read


def sampling(rows: int) -> tuple[float, float]:
    read = 2 * rows * VOCAB
    logits = [random_tensor(rows, VOCAB) for _ in range(int(BYTES / read) + 1)]
    keys, positions = key_tensor(list(range(rows)), "cuda"), torch.arange(rows, device="cuda")
    nothing = torch.zeros(rows, 0, dtype=torch.long, device="cuda")

    def run() -> None:
        for each in logits:
            sample_tokens(each, keys, positions, Sampling(1), nothing)

    return microseconds(run) / len(logits), read


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def main() -> None:
    peak = bandwidth()
    print(f"{torch.cuda.get_device_name()}: a pass over large tensors moves {peak / 1e6:.2f} TB/s")
    rng = random.Random(0)
    for name, heads, size, rows, between in ATTENTION:
        took, read = attention(heads, size, [rng.randint(*between) for _ in range(rows)])
        lengths = "-".join(str(length) for length in between)
        print(line(f"attention {name}, {rows} rows of {lengths}", took, read, peak))
    for rows in (256, 128, 16):
        print(line(f"sampling {rows} rows", *sampling(rows), peak))


def line(what: str, took: float, read: float, peak: float) -> str:
    return (
        f"{what:44} {took:7.1f} us {read / took / 1e6:6.2f} TB/s {took * peak / read:5.2f} floors"
    )


if __name__ == "__main__":
    main()
