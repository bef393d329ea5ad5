"""Compile the layers that training runs while the first answers are sampled.

A copy of one layer goes forward and backward in a thread. Compiled code belongs to the layer's
class, so it is there for the model's own layers when the first update wants it.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from groupwise.batch import make_batch
from groupwise.compat.torch_modules import replaced_forwards
from groupwise.config import Config
from groupwise.policy import compiled
from groupwise.policy.attention import use_attention
from groupwise.policy.compiled import compiles_training, decoder_layers, in_background
from groupwise.policy.packed_attention import PackedAttention, use_packed_attention
from groupwise.policy.packing import Rows, microbatches
from groupwise.policy.policy import Policy
from groupwise.types import Completion, Group, Problem

log = logging.getLogger("groupwise")

TOKENS = 2048
"""Of the batch on a GPU, where kernels are chosen with its size in mind."""


@contextmanager
def compile_ahead(policy: Policy, config: Config, on: bool = True) -> Iterator[None]:
    """While this is open, or until they are done, a thread compiles the layers that are trained.

    Those that it cannot be done for are compiled when the first update wants them.
    """
    wanted = on and compiles_training(policy.device, config) and not config.trains_in_fp8
    with ExitStack() as stack:
        try:
            work = _layer_and_work(policy) if wanted else None
        except Exception as error:
            log.info("layers are not compiled ahead: %s", str(error).split("\n")[0])
        else:
            if work is not None:
                stack.enter_context(in_background(*work))
        yield


def _layer_and_work(policy: Policy) -> tuple[type[nn.Module], Callable[[], None]] | None:
    """The kind of the layers, and what compiles them; None where they are of several."""
    layers = list(decoder_layers(policy.model) or [])
    if len({type(layer) for layer in layers}) != 1 or policy.layout == "padded":
        return None
    rows = _rows(policy, TOKENS if policy.device.type == "cuda" else 32)
    hidden, call = _first_call(policy, layers, rows)
    layer = copy.deepcopy(layers[0]).train()
    return type(layer), partial(_forward_and_backward, layer, hidden, call, rows)


def _forward_and_backward(
    layer: nn.Module, hidden: Tensor, call: Callable[..., Any], rows: Rows
) -> None:
    assert rows.groups is not None
    (config,) = {id(m.config): m.config for m in layer.modules() if hasattr(m, "config")}.values()
    model = SimpleNamespace(config=config)
    needs_grad = {hidden.requires_grad, True}  # the first layer's input needs none in LoRA
    with use_attention(model, PackedAttention(rows.groups, hidden.device)):
        for needed in sorted(needs_grad):
            given = hidden.detach().requires_grad_(needed)
            out = call(partial(compiled.compiled_forward(type(layer)), layer), given + 0)
            (out if isinstance(out, Tensor) else out[0]).float().sum().backward()


def _first_call(
    policy: Policy, layers: list[nn.Module], rows: Rows
) -> tuple[Tensor, Callable[..., Any]]:
    """The first layer's input, and how the model calls it: `call(layer, input)`."""
    calls: list[tuple[Tensor, tuple[Any, ...], dict[str, Any]]] = []

    def note(hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        calls.append((hidden, args, options))
        return hidden

    def same(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden

    forwards: dict[nn.Module, Callable[..., Any]] = dict.fromkeys(layers, same)
    with use_packed_attention(policy.model, rows), replaced_forwards(forwards | {layers[0]: note}):
        policy.body(input_ids=rows.tokens_RS, position_ids=rows.positions_RS)
    ((hidden, args, options),) = calls
    return hidden, lambda layer, hidden: layer(hidden, *args, **options)


def _rows(policy: Policy, tokens: int) -> Rows:
    """A prompt and seven answers of different lengths."""
    lengths = [max(tokens * part // 36, 1) for part in range(1, 9)]
    prompt, *answers = (tuple(n % policy.vocab for n in range(length)) for length in lengths)
    completions = tuple(Completion(answer, (0.0,) * len(answer), "eos") for answer in answers)
    group = Group(Problem("", ""), prompt, completions)
    (micro,) = microbatches(make_batch([group]), policy.layout, 2 * tokens, policy.pad_id)
    return micro.rows.to(policy.device)
