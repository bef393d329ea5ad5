"""The kernels of a decode step on a GPU, against the time that reading their input takes.

    python benchmarks/decode_kernels.py

Attention: the keys and values of one layer of Qwen2.5-0.5B, -1.5B and -3B, rows of random lengths,
pages in random order. Sampling: logits over 151,936 tokens. Layers: all of a model's, with few rows
by our own products, by the matrix library's, and in 8 bits. Each is a CUDA graph that goes through
more data than the cache holds; the median of some replays counts.
"""

import random
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from groupwise.rollout.native import decode_kernel, fp8_layers_cuda, fused_layers_cuda
from groupwise.rollout.native.decode_kernel import decode_attention
from groupwise.rollout.native.llama_layer import RunLayers, layer_weights
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.types import Sampling
from sidebyside.models import SHAPES

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
SHARED = [("1.5B", 12, 128, 128, 256), ("1.5B", 12, 128, 128, 4096), ("3B", 16, 128, 64, 4096)]
"""Model, heads, head size, rows, and the tokens of a prompt that groups of 8 rows share."""


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


def attention(
    heads: int, size: int, kv_lens: list[int], group: int = 1, shared: int = 0
) -> tuple[float, float]:
    """Microseconds of a layer, and bytes of keys and values that it needs: those of the first
    `shared` tokens, whole pages, once for each group of so many rows."""
    rows, width = len(kv_lens), max(kv_lens) // PAGE + 1
    read = (sum(kv_lens) - (rows - rows // group) * shared) * 2 * size * 2 * 2
    layers = [random_tensor(2, rows * width, 2, PAGE, size) for _ in range(int(BYTES / read) + 1)]
    order = torch.randperm(rows * width, device="cuda").view(rows, width)
    in_prompt = shared // PAGE
    order[:, :in_prompt] = order[::group, :in_prompt].repeat_interleave(group, 0)
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


class Layers:
    """All decoder layers of a shape, with random weights."""

    def __init__(self, shape: str) -> None:
        with torch.device("cuda"):
            config = SHAPES[shape]()
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        self.layers = [layer_weights(layer, least_rank=16) for layer in model.model.layers]
        self.in_fp8 = [layer.in_fp8() for layer in self.layers]
        self.last_norm, self.hidden_size = model.model.norm.weight, config.hidden_size
        self.bytes = sum(p.nbytes for p in model.model.layers.parameters())

    def measure(
        self, rows: int, kv_lens: list[int], run: RunLayers, *, fp8: bool = False
    ) -> tuple[float, float]:
        """Microseconds, and bytes of weights, keys and values."""
        layers = self.in_fp8 if fp8 else self.layers
        first = self.layers[0]
        heads, kv_heads, size = first.heads, first.kv_heads, first.head_size
        width = max(kv_lens) // PAGE + 1
        caches = [random_tensor(2, rows * width, kv_heads, PAGE, size) for _ in self.layers]
        table = torch.randperm(rows * width, device="cuda").view(rows, width)
        table *= kv_heads * PAGE * size
        lens, rotary = torch.tensor(kv_lens, device="cuda"), random_tensor(2, rows, size)
        hidden = random_tensor(rows, self.hidden_size)

        def attended(n: int, qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(rows, -1, 1, size).split([heads, kv_heads, kv_heads], dim=1)
            keys, values = caches[n]
            splits = decode_kernel.splits_of(q, k, keys, table)
            out = decode_kernel.launch(
                q, k, v, keys, values, table, lens, size**-0.5, 0, 0.0, splits,
                rotary=(rotary[0], rotary[1]), dependent=True,
            )  # fmt: skip
            return out.reshape(rows, -1)

        took = microseconds(lambda: run(layers, self.last_norm, hidden, attended))
        weights = self.bytes / 2 if fp8 else self.bytes
        return took, weights + sum(kv_lens) * len(self.layers) * 2 * kv_heads * size * 2


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


@torch.no_grad()
def main() -> None:
    peak = bandwidth()
    print(f"{torch.cuda.get_device_name()}: a pass over large tensors moves {peak / 1e6:.2f} TB/s")
    rng = random.Random(0)
    for name, heads, size, rows, between in ATTENTION:
        took, read = attention(heads, size, [rng.randint(*between) for _ in range(rows)])
        lengths = "-".join(str(length) for length in between)
        print(line(f"attention {name}, {rows} rows of {lengths}", took, read, peak))
    for name, heads, size, rows, shared in SHARED:
        kv_lens = [shared + rng.randint(100, 200) for _ in range(rows)]
        for group in (1, 8):
            took, read = attention(heads, size, kv_lens, group, shared if group > 1 else 0)
            what = f"attention {name}, {rows} rows, {shared} tokens shared by {group}"
            print(line(what, took, read, peak))
    for rows in (256, 128, 16):
        print(line(f"sampling {rows} rows", *sampling(rows), peak))
    for shape in ("shape:0.5b", "shape:1.5b", "shape:3b", "shape:8b"):
        layers = Layers(shape)
        for rows in (16, 32, 64, 128, 256):
            kv_lens = [rng.randint(200, 600) for _ in range(rows)]
            ours, library = fused_layers_cuda.run_few_rows, fused_layers_cuda.run_many_rows
            ways = {
                "our products": layers.measure(rows, kv_lens, ours),
                "the library's": layers.measure(rows, kv_lens, library),
                "8 bits": layers.measure(rows, kv_lens, fp8_layers_cuda.run_layers, fp8=True),
            }
            for way, measured in ways.items():
                print(line(f"layers of {shape}, {rows} rows, {way}", *measured, peak), flush=True)


def line(what: str, took: float, read: float, peak: float) -> str:
    return (
        f"{what:54} {took:7.1f} us {read / took / 1e6:6.2f} TB/s {took * peak / read:5.2f} floors"
    )


if __name__ == "__main__":
    main()
