"""Decoder layers of Llama's kind, computed for a decode step by our own kernels.

Norm, qkv projection, rotary positions, attention, output projection, residual sum, norm, gated MLP,
residual sum: with few rows that is five kernels, none of which waits for another to start. Whether
a model has such layers is found by its modules' names and kinds, and then tried: all layers must
give what the model's own give. Other models' layers are compiled (compiled_decode.py).
"""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.compat.torch_modules import replaced_forwards
from groupwise.policy.attention import AttentionOptions, use_attention
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.policy import Policy
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_projections import FusedLinear, fuse_projections
from groupwise.rollout.native.gated_mlp import is_gated_mlp

log = logging.getLogger("groupwise")

Rotary = tuple[Tensor, Tensor]
"""(n, D) cosines and sines of the rows' positions."""


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    eps: float
    heads: int
    kv_heads: int
    head_size: int


class FusedLayers:
    def __init__(self, policy: Policy) -> None:
        self.modules = decoder_layers(policy.model) or []
        self.final_norm: Any = getattr(policy.model.base_model, "norm", None)
        self.layers = [_weights(module) for module in self.modules]
        self.options = self._tried(policy)

    @contextmanager
    def in_use(self, attention: DecodeAttention) -> Iterator[None]:
        """While this is open, the model's layers and its last norm are computed here."""

        def attend(n: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
            return attention.with_rotary(n, q, k, v, rotary, self.options[n])

        with self._replaced(attend):
            yield

    @contextmanager
    def _replaced(self, attend: Any) -> Iterator[None]:
        """The first layer's call runs all of them and the norm; the others pass it on."""

        def run(hidden: Tensor, *_: Any, position_embeddings: Rotary, **__: Any) -> Tensor:
            cos, sin = (x.expand(len(hidden), -1, -1)[:, 0] for x in position_embeddings)
            return self._run(hidden[:, 0], (cos, sin), attend)[:, None]

        def same(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            return hidden

        others = [*self.modules[1:], self.final_norm]
        with replaced_forwards({self.modules[0]: run, **dict.fromkeys(others, same)}):
            yield

    def _run(self, hidden: Tensor, rotary: Rotary, attend: Any) -> Tensor:
        from groupwise.rollout.native import linear_kernel as kernels

        few = len(hidden) <= kernels.FEW_ROWS
        run = self._few_rows if few else self._many_rows
        return run(kernels, hidden.contiguous(), partial(self._attended, rotary, attend))

    def _attended(self, rotary: Rotary, attend: Any, n: int, qkv: Tensor) -> Tensor:
        layer = self.layers[n]
        sizes = [layer.heads, layer.kv_heads, layer.kv_heads]
        q, k, v = qkv.view(len(qkv), -1, 1, layer.head_size).split(sizes, dim=1)
        return attend(n, q, k, v, rotary).reshape(len(qkv), -1)

    def _few_rows(self, kernels: Any, hidden: Tensor, attended: Any) -> Tensor:
        def linear(x: Any, rows: int, weight: Tensor, **options: Any) -> Any:
            tiles = kernels.tiles_for(rows, *weight.shape[::-1])
            return kernels.launch(x, weight, tiles, **options)

        rows = len(hidden)
        norms = [layer.attention_norm for layer in self.layers] + [self.final_norm.weight]
        normed = kernels.for_norm(hidden, norms[0])
        for n, layer in enumerate(self.layers):
            qkv, _ = linear(normed, rows, layer.qkv, bias=layer.qkv_bias, eps=layer.eps)
            leave = {"residual": hidden, "next_norm": layer.mlp_norm}
            hidden, normed = linear(attended(n, qkv), rows, layer.output, **leave)
            gated, _ = kernels.launch(
                normed, layer.gate_up, kernels.GATED_TILES, eps=layer.eps, gated=True
            )
            leave = {"residual": hidden, "next_norm": norms[n + 1]}
            hidden, normed = linear(gated, rows, layer.down, **leave)
        return kernels.add_norm(hidden, None, norms[-1], self.layers[-1].eps)[1]

    def _many_rows(self, kernels: Any, hidden: Tensor, attended: Any) -> Tensor:
        delta = None
        for n, layer in enumerate(self.layers):
            hidden, x = kernels.add_norm(hidden, delta, layer.attention_norm, layer.eps)
            delta = F.linear(attended(n, F.linear(x, layer.qkv, layer.qkv_bias)), layer.output)
            hidden, x = kernels.add_norm(hidden, delta, layer.mlp_norm, layer.eps)
            delta = F.linear(kernels.gated_product(x, layer.gate_up), layer.down)
        return kernels.add_norm(hidden, delta, self.final_norm.weight, self.layers[-1].eps)[1]

    @torch.no_grad()
    def _tried(self, policy: Policy) -> list[AttentionOptions]:
        """What each layer asks of its attention; an error if our layers give something else."""
        asked: list[AttentionOptions] = []

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """Not attention, but it depends on all of them."""
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            return (q + k.flip(-1) + v).transpose(1, 2)

        def look(module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
            asked.append(options)
            return mix(q, k, v)

        def attend(n: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
            cos, sin = (x[:, None, None] for x in rotary)
            q, k = (x * cos + _half_rotated(x) * sin for x in (q, k))
            return mix(q, k, v)

        for rows in (3, 100):  # few, and many
            asked.clear()
            tokens = torch.arange(rows, device=policy.device)[:, None] % policy.vocab
            run = partial(policy.body, input_ids=tokens, position_ids=tokens + 7)
            with use_attention(policy.model, look):
                expected = run().float()
            with self._replaced(attend):
                gap = (run().float() - expected).norm() / expected.norm()
            if not gap < 0.05:
                raise ValueError(f"its layers compute something else (gap {gap:.2g})")
        if len(asked) != len(self.layers) or any(each.softcap for each in asked):
            raise ValueError("its attention is of another kind")
        return asked


def _half_rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def fused_layers(policy: Policy) -> FusedLayers | None:
    """The model's layers by our kernels; None where those cannot compute them."""
    if importlib.util.find_spec("triton") is None or policy.device.type != "cuda":
        return None
    layers: Sequence[Any] = decoder_layers(policy.model) or []
    if not layers or not all(_is_llama_like(layer) for layer in layers):
        return None
    try:
        return FusedLayers(policy)
    except Exception as error:  # a compiler can fail in any way; there are other ways to sample
        log.info("sampling without fused layers: %s", str(error).split("\n")[0])
        return None


def _is_llama_like(layer: Any) -> bool:
    names = {name for name, _ in layer.named_children()}
    if names != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    attention = layer.self_attn
    linears: list[Any] = [getattr(attention, f"{name}_proj", None) for name in "qkvo"]
    if len(list(attention.children())) != 4 or any(type(x) is not nn.Linear for x in linears):
        return False
    if linears[3].bias is not None or any(x.weight.dtype != torch.bfloat16 for x in linears):
        return False
    sizes = [*linears[0].weight.shape, *linears[3].weight.shape, *layer.mlp.gate_proj.weight.shape]
    return all(size % 64 == 0 for size in sizes) and is_gated_mlp(layer.mlp)


def _weights(layer: Any) -> LayerWeights:
    """Views of the layer's parameters, those of qkv and of gate and up made neighbours."""
    attention, mlp = layer.self_attn, layer.mlp
    fused = {(parent, name): module for parent, name, module in fuse_projections(layer)}
    qkv, gate_up = fused[attention, "q_proj"], fused[mlp, "gate_proj"]
    assert isinstance(qkv, FusedLinear) and isinstance(gate_up, FusedLinear)
    size = attention.head_dim
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight,
        qkv=qkv.weight,
        qkv_bias=qkv.bias,
        output=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up.weight,
        down=mlp.down_proj.weight,
        eps=layer.input_layernorm.variance_epsilon,
        heads=attention.q_proj.out_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_size=size,
    )
