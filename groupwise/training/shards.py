"""FSDP2: ranks hold a model together, each a part of every weight, gradient and moment.

accelerate wraps each decoder layer by torch's `fully_shard`. Parts are fp32 and are gathered in the
policy's precision, layer by layer, so they are at once the optimizer's masters. Sampling needs
whole weights at every token: for it each rank keeps a whole copy in the policy's precision, which
is the policy that was loaded, and which `Optimizer.fill` brings up to date after each update. That
copy is also what is saved, and what a reference that moves follows.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from groupwise.compat.accelerate import fsdp2_accelerator
from groupwise.compat.transformers import no_split_modules
from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.load import Policy, split_head


class Passes(nn.Module):
    """The root of a wrapped model: whatever runs inside its forward finds its weights whole.

    A policy's passes go through its body, then through its head in chunks, and never through the
    model's own forward. `passes(lambda: ...)` is the one call that wrappers get to see.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        # Copies: what hooks are put on must not be views.
        return tuple(tensor.clone() for tensor in work())


def shard(policy: Policy, config: Config, world: World) -> Policy:
    """This rank's part of a copy of the policy."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import MixedPrecisionPolicy

    dtype, device = policy.model.dtype, policy.device
    shards = copied(policy)
    for weight in shards.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    passes = Passes(shards.model)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=layer_classes(shards.model),
        reshard_after_forward=True,
        cpu_offload=config.distributed.offload_parameters and device.type != "cpu",
        mixed_precision_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        cpu_ram_efficient_loading=False,
    )
    fsdp2_prepare_model(fsdp2_accelerator(device, plugin, world.size), passes)
    return replace(shards, run=passes, passes=world.most, runs_on=device)


def copied(policy: Policy) -> Policy:
    """The same policy with weights of its own, in CPU memory until they are cut."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().to("cpu", copy=True), weight.requires_grad)
        for weight in policy.model.parameters()
    }
    model, adapter = copy.deepcopy((policy.model, policy.adapter), memo)
    model.to("cpu")  # what is left: buffers
    body, head = split_head(model)
    return replace(policy, model=model, adapter=adapter, body=body, head=head)


def layer_classes(model: Any) -> list[str]:
    """The names of the model's decoder layers' classes."""
    layers = decoder_layers(model)
    names = [type(layer).__name__ for layer in layers or ()]
    return sorted(set(names or no_split_modules(model)))
