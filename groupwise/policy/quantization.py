"""Frozen weights in 8 or 4 bits, through bitsandbytes.

int8 is LLM.int8(): weights and activations in 8 bits, activation columns with outliers apart. nf4
stores 4-bit codes of blocks of 64 weights, and the blocks' scales in 8 bits (double quantisation):
4.13 bits a weight. It computes in the policy's precision. The output head, the embeddings and the
norms are left as they are. Only what lies on top, an adapter, can be trained.
"""

import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from groupwise.errors import ModelError
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.sizes import NF4_BLOCK

log = logging.getLogger("groupwise")


def quantization_config(
    kind: str | None, dtype: torch.dtype, source: str, device: torch.device
) -> Any:
    """What `from_pretrained(source)` takes as `quantization_config`; None: nothing is
    quantized, also where bitsandbytes is not installed, which is logged."""
    if kind is not None and importlib.util.find_spec("bitsandbytes") is None:
        log.warning(
            "quantization=%s is left out, weights stay in %s: bitsandbytes is not installed "
            "(pip install 'groupwise[quant]')",
            kind,
            str(dtype).removeprefix("torch."),
        )
        return None
    if kind is None:
        return None
    from transformers import BitsAndBytesConfig

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns at each matrix product
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    assert kind == "nf4"
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=_cpu_skip_modules(source) if device.type == "cpu" else None,
    )


def _cpu_skip_modules(source: str) -> list[str] | None:
    """Layers not to quantize on a CPU, with the head; None: the head alone, as is the default.

    The CPU kernel of bitsandbytes (0.50.2) takes the scales of the wrong blocks where rows are not
    a multiple of the block size, and says nothing: errors of 25 % of a weight instead of 9 %.
    """
    config = from_pretrained(AutoConfig, source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    head = model.get_output_embeddings()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    body = {name: layer for name, layer in linear.items() if layer is not head}
    odd = [name for name, layer in body.items() if layer.in_features % NF4_BLOCK]
    if not odd:
        return None
    if len(odd) == len(body):
        raise ModelError(
            f"nf4 on a CPU needs layers that read a multiple of {NF4_BLOCK} numbers, and {source} "
            "has none: use quantization=int8, or a GPU"
        )
    log.warning(
        "%d of %d layers are not quantized: bitsandbytes misreads them as nf4 on a CPU",
        len(odd),
        len(body),
    )
    return odd + [name for name, layer in linear.items() if layer is head]


def weight_count(parameter: Tensor) -> int:
    """How many weights a parameter stands for; 4-bit ones are packed two to a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def weight_bytes(parameter: Tensor) -> int:
    """Memory of a parameter, with the scales of a 4-bit one; 8-bit ones have 4 bytes a row more."""
    state, total = getattr(parameter, "quant_state", None), parameter.nbytes
    while state is not None:
        total += state.absmax.nbytes
        state = state.state2
    return total
