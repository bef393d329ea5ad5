"""What products in 8 bits gain while a model is trained (fp8=training), on one GPU.

    python benchmarks/fp8.py

Forward and backward passes of a few decoder layers in the shapes of known models, random weights,
compiled, over one micro-batch: in bf16 and in 8 bits, the fastest of some passes.
"""

import time

import torch
from transformers import AutoModelForCausalLM

from groupwise.policy.training_layers import TrainingLayers
from sidebyside.models import SHAPES

LAYERS, TOKENS, LENGTH, PASSES = 4, 16_384, 1024, 8


def seconds(shape: str, *, fp8: bool) -> float:
    config = SHAPES[shape]()
    config.num_hidden_layers = LAYERS
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tokens = torch.randint(0, config.vocab_size, (TOKENS // LENGTH, LENGTH))
    body = model.train().model
    torch.compiler.reset()
    times: list[float] = []
    for _ in range(PASSES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with TrainingLayers(compiled=True, fp8=fp8).in_use(model):
            hidden = body(input_ids=tokens, use_cache=False).last_hidden_state
            hidden.float().square().mean().backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        model.zero_grad(set_to_none=True)
    return min(times)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}: {LAYERS} layers, {TOKENS} tokens, milliseconds a layer")
    print(f"{'shape':12} {'bf16':>7} {'fp8':>7} ratio")
    for shape in ("shape:0.5b", "shape:1.5b", "shape:3b", "shape:8b"):
        plain, ours = (1000 * seconds(shape, fp8=fp8) / LAYERS for fp8 in (False, True))
        print(f"{shape:12} {plain:7.2f} {ours:7.2f} {plain / ours:5.2f}", flush=True)


if __name__ == "__main__":
    main()
