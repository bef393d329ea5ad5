"""FSDP2: each rank has a shard of every weight, gradient and moment.

accelerate wraps each decoder layer by torch's `fully_shard`. Shards are fp32, so they are at once
the optimizer's masters, and are gathered layer by layer in the policy's precision. Sampling needs
full weights at every token: for it each rank keeps a full copy in the policy's precision, which is
the policy that was loaded, and which `end_training_step` brings up to date after each update. That
copy is also what is saved, and what a reference that moves follows.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from groupwise.compat.accelerate import prepare_fsdp2
from groupwise.compat.transformers import no_split_modules
from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.load import pick_device
from groupwise.policy.policy import Policy, split_head


class ForwardRoot(nn.Module):
    """The module that FSDP2 and DeepSpeed wrap: inside its forward, weights can be gathered.

    A policy's forward passes go through its body, then through its head in chunks, and never
    through the model's own forward. `root(lambda: ...)` is the one call that wrappers see.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        # Clones: wrappers put hooks on outputs, which must not be views.
        return tuple(tensor.clone() for tensor in work())


def shard(policy: Policy, config: Config, world: World) -> Policy:
    """A sharded copy of the policy: this rank's shard."""
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    dtype, device = policy.model.dtype, pick_device(config.device)
    shards = copy_policy(policy)
    for weight in shards.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    root = ForwardRoot(shards.model)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=layer_classes(shards.model),
        reshard_after_forward=True,
        cpu_offload=config.distributed.offload_parameters and device.type != "cpu",
        mixed_precision_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        cpu_ram_efficient_loading=False,
    )
    prepare_fsdp2(root, device, plugin, world.size)
    return replace(shards, run=root, passes=world.max, runs_on=device)


def copy_policy(policy: Policy) -> Policy:
    """The same policy with weights of its own, in CPU memory until they are sharded."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().to("cpu", copy=True), weight.requires_grad)
        for weight in policy.model.parameters()
    }
    model, adapter = copy.deepcopy((policy.model, policy.adapter), memo)
    model.to("cpu")  # the buffers
    body, head = split_head(model)
    return replace(policy, model=model, adapter=adapter, body=body, head=head)


def free_weights(model: nn.Module) -> None:
    """Free the memory of a model's weights: names, shapes and precision stay."""
    empty: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) not in empty:  # tied weights stay tied
                meta = torch.empty_like(weight, device="meta")
                empty[id(weight)] = nn.Parameter(meta, weight.requires_grad)
            setattr(module, name, empty[id(weight)])


def layer_classes(model: Any) -> list[str]:
    """The names of the model's decoder layers' classes."""
    layers = decoder_layers(model)
    names = [type(layer).__name__ for layer in layers or ()]
    return sorted(set(names or no_split_modules(model)))
