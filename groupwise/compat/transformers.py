"""What we need of transformers models and configs beyond their public interface."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

from jinja2 import pass_context


def has_attention_interface(model: Any) -> bool:
    """Whether the model's attention layers look their function up in AttentionInterface."""
    compatible = getattr(model, "is_backend_compatible", None)
    return compatible is not None and compatible()


@contextmanager
def attn_implementation(model: Any, name: str) -> Iterator[None]:
    """While this is open, the model's attention is the registered function `name`.

    `set_attn_implementation` is public and checks the whole model on each call: too slow for twice
    a decode step.
    """
    text = model.config.get_text_config()
    configs = [model.config] if text is model.config else [model.config, text]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own


ROUTED = "groupwise_attention"
"""Attribute of a model's config: what its attention is routed to. Each model has a config of its
own, so one may be sampled from in a thread while another is trained; and whichever thread runs a
backward pass finds it."""


@contextmanager
def routed_attention(model: Any, name: str, function: Any) -> Iterator[None]:
    """`attn_implementation`, where the registered function asks `routed` what to call."""
    configs, outer = (model.config, model.config.get_text_config()), routed(model.config)
    with attn_implementation(model, name):
        for config in configs:
            vars(config)[ROUTED] = function
        try:
            yield
        finally:
            for config in configs:
                vars(config)[ROUTED] = outer
                if outer is None:
                    vars(config).pop(ROUTED)


def routed(config: Any) -> Any:
    """What the innermost open `routed_attention` gave; None outside."""
    return getattr(config, ROUTED, None)


def is_saved_in_another_form(model: Any) -> bool:
    """Whether `save_pretrained` renames or splits weights, as it does for mixtures of experts."""
    return bool(getattr(model, "_weight_conversions", None))


def set_checkpoint_function(model: Any, function: Callable[..., Any]) -> None:
    """Run layers under `function(layer, *inputs)` where gradient checkpointing is enabled."""
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module._gradient_checkpointing_func = function


def is_adapter_checkpoint(model: Any) -> bool:
    """Whether `from_pretrained` found an adapter and put it into the model."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def no_split_modules(model: Any) -> list[str]:
    """Class names of the layers that the model wants to have whole on one device."""
    return list(getattr(model, "_no_split_modules", None) or ())


def model_id(model: Any) -> str:
    """The name or folder that a model was loaded from; empty for one made in memory."""
    return str(getattr(model.config, "_name_or_path", "") or "")


def callback_handler(callbacks: Sequence[Any], model: Any, tokenizer: Any) -> Any:
    """transformers' own, which calls them in order and gathers what they want."""
    from transformers.trainer_callback import CallbackHandler

    return CallbackHandler(list(callbacks), model, tokenizer, None, None)


def decode_together(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str] | None:
    """`tokenizer.decode` of each, without special tokens and clean-up, on all cores at once.

    None for a tokenizer that decodes in its own way.
    """
    from transformers import PreTrainedTokenizerFast

    known, kind = PreTrainedTokenizerFast, type(tokenizer)
    same = isinstance(tokenizer, known) and kind.decode is known.decode
    if not same or kind._decode is not known._decode:
        return None
    return tokenizer.backend_tokenizer.decode_batch([list(row) for row in rows])


def tokenizer_part(backend: Any, name: str) -> Any:
    """Settings of a tokenizer's "normalizer", "pre_tokenizer" or "decoder"; None without one."""
    part = getattr(backend, name, None)
    return None if part is None else json.loads(part.__getstate__())


def parsed_chat_template(template: str) -> Any:
    """jinja's syntax tree of a chat template, by the environment that renders it. It is not
    compiled, which computes `[1] * 10**9` already."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template("").environment.parse(template)


_compiling = threading.Lock()


@pass_context
def _unchanged(context: Any, value: Any) -> Any:
    return value


def compile_chat_template(
    template: str, bounded: Callable[..., Any], joined: Callable[[Iterable[Any]], str]
) -> None:
    """Have transformers keep the template compiled, with `bounded(name, function, *values)` in
    place of each operation that makes a text or list, and `joined` in place of joining them."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment as Environment
    from transformers.utils.chat_template_utils import _compile_jinja_template

    with _compiling:
        usual = Environment.intercepted_binops
        Environment.intercepted_binops = frozenset("*+%")
        # What is constant would be computed while it compiles, unless outputs need the context.
        Environment.optimized = property(lambda _: False, lambda _, value: None)  # pyright: ignore
        Environment.finalize = property(lambda _: _unchanged, lambda _, value: None)  # pyright: ignore
        try:
            compiled: Any = _compile_jinja_template(template)
        finally:
            Environment.intercepted_binops = usual
            del Environment.optimized, Environment.finalize  # pyright: ignore
    names, environment = compiled.root_render_func.__globals__, compiled.environment
    if names.get("str_join") is joined:
        return
    for name in "*+%":
        environment.binop_table[name] = partial(bounded, name, environment.binop_table[name])
    for name, function in list(environment.filters.items()):
        environment.filters[name] = wraps(function)(partial(bounded, name, function))
    call = environment.call

    def bounded_call(context: Any, called: Any, *values: Any, **options: Any) -> Any:
        method = getattr(called, "__wrapped__", called)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        name = getattr(called, "__name__", "")
        if not isinstance(owner, str):
            return call(context, called, *values, **options)

        def called_with(_: str, *given: Any, **more: Any) -> Any:
            return call(context, called, *given, **more)

        return bounded(name, called_with, owner, *values, **options)

    environment.finalize = _unchanged
    environment.call, environment.concat = bounded_call, joined
    names.update(str=partial(bounded, "str", str), str_join=joined)
