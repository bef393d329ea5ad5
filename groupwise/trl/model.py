"""The model that a trainer is given as a policy: by name or in memory, with or without adapter."""

import copy
import functools
import pathlib
from typing import Any

import torch
from peft import PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from groupwise.compat.transformers import model_id
from groupwise.errors import ConfigError, ModelError, type_name
from groupwise.policy.adapters import Adapter, in_precision
from groupwise.policy.load import make_policy, pick_device, pick_dtype
from groupwise.policy.policy import Policy
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.resolve import resolve_model
from groupwise.policy.weights import copy_into, trained_weights
from groupwise.trl.config import GRPOConfig, as_dict

log = logging.get_logger("groupwise")


def device_of(args: GRPOConfig) -> torch.device:
    return pick_device("cpu" if args.use_cpu else "auto")


def dtype_of(args: GRPOConfig) -> torch.dtype:
    named = "bf16" if args.bf16 else "fp16" if args.fp16 else "auto"
    return pick_dtype("fp32" if args.bf16 is False and not args.fp16 else named, device_of(args))


def load_model(model: Any, args: GRPOConfig, quantization_config: Any) -> Any:
    """On the run's device, in its precision; a model in memory is moved and cast in place."""
    if isinstance(model, str):
        return _from_name(model, args, quantization_config)
    for what, given in (
        ("model_init_kwargs", args.model_init_kwargs),
        ("quantization_config", quantization_config),
    ):
        if given is not None:
            raise ConfigError(f"{what} is for a model given by name; this one is in memory already")
    if _is_quantized(model):
        return model
    return model.to(device_of(args), dtype_of(args))


def _from_name(name: str, args: GRPOConfig, quantization_config: Any) -> Any:
    options = as_dict(args.model_init_kwargs)
    options.setdefault("dtype", options.pop("torch_dtype", dtype_of(args)))
    if options.pop("trust_remote_code", False) or args.trust_remote_code:
        raise ConfigError(
            "trust_remote_code: models bring no code of their own here. Leave it out, or load the "
            "model yourself and pass it as `model`"
        )
    if quantization_config is not None:
        if "quantization_config" in options:
            raise ConfigError("quantization_config is given twice, also in model_init_kwargs")
        options["quantization_config"] = quantization_config
    if "quantization_config" in options:
        options.setdefault("device_map", {"": device_of(args)})
    model: Any = from_pretrained(AutoModelForCausalLM, resolve_model(name), **options)
    if model.dtype == torch.float16 and not _is_quantized(model) and not args.fp16:
        log.warning("%s is in float16: its loss is scaled", name)
    return model if "device_map" in options else model.to(device_of(args))


def load_tokenizer(given: Any, model: Any, args: GRPOConfig) -> Any:
    """The model's own unless given; with a padding token, and the chat template's arguments."""
    if given is None:
        revision = as_dict(args.model_init_kwargs).get("revision")
        options = {"revision": revision} if revision else {}
        given = from_pretrained(AutoTokenizer, model_id(model), **options)
    if not isinstance(given, PreTrainedTokenizerBase):
        raise TypeError(
            f"processing_class must be a tokenizer, not {type_name(given)}: groupwise trains "
            "models of text alone"
        )
    if given.pad_token is None:
        given.pad_token = given.eos_token
    return given


def with_template_arguments(tokenizer: Any, arguments: dict[str, Any] | None) -> Any:
    """A tokenizer whose chat template is always rendered with these arguments."""
    if not arguments:
        return tokenizer
    bound = copy.copy(tokenizer)
    bound.apply_chat_template = functools.partial(tokenizer.apply_chat_template, **arguments)
    return bound


def make_trained_policy(model: Any, tokenizer: Any, args: GRPOConfig, peft_config: Any) -> Policy:
    """The policy. With an adapter, `policy.adapter.peft` is PEFT's own model."""
    adapter = None
    if isinstance(model, PeftModel):
        if peft_config is not None:
            raise ConfigError("the model has an adapter already: leave peft_config out")
        adapter = Adapter(model, starts_as_base=False)
    elif peft_config is not None:
        if getattr(peft_config, "is_prompt_learning", False):
            raise ConfigError(
                "prompt-learning adapters put tokens of their own before a prompt, which engines "
                "and packed batches do not know: use LoRA"
            )
        wrapped = get_peft_model(model, peft_config, autocast_adapter_dtype=False)
        adapter = Adapter(wrapped, starts_as_base=True)
    base: Any = model if adapter is None else adapter.peft.get_base_model()
    if adapter is not None and _is_quantized(base):
        in_precision(adapter, dtype_of(args))
    elif adapter is None and _is_quantized(base):
        raise ConfigError("quantized weights cannot be trained: give a peft_config as well")
    if args.disable_dropout:
        for module in base.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    if args.cast_lm_head_to_fp32 and base.get_output_embeddings().weight.dtype != torch.float32:
        raise ConfigError(
            "cast_lm_head_to_fp32=True: the output layer has the precision of the model, and its "
            "products are summed in fp32; train in fp32 (bf16=False), or leave it out"
        )
    base.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return make_policy(base, tokenizer, "auto", adapter, args.gradient_checkpointing)


def _is_quantized(model: Any) -> bool:
    return any(getattr(model, f"is_loaded_in_{bits}bit", False) for bits in (4, 8))


def read_weights(policy: Policy, folder: pathlib.Path) -> None:
    """The weights of a checkpoint's model folder into the model that is in memory."""
    if policy.adapter is not None:
        device = str(policy.device)
        set_peft_model_state_dict(policy.adapter.peft, load_peft_weights(str(folder), device))
        return
    saved: Any = from_pretrained(AutoModelForCausalLM, folder, dtype=policy.model.dtype)
    own, stored = trained_weights(policy), dict(saved.named_parameters())
    if own.keys() != stored.keys():
        raise ModelError(f"{folder} holds another model than {type(policy.model).__name__}")
    copy_into(own, ((name, weight.detach()) for name, weight in stored.items()))
