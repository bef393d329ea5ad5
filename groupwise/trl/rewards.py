"""Rewards as TRL takes them: functions, coroutines, and models that score a text.

They run in this process, as in TRL: they see the script's variables, and `trainer_state`,
`log_extra` and `log_metric` are theirs to use.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from groupwise.compat.transformers import model_id
from groupwise.errors import ConfigError
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.resolve import resolve_model
from groupwise.policy.tokenizing import encoded
from groupwise.rewards.base import Reward
from groupwise.trl.config import GRPOConfig, as_dict
from groupwise.trl.environment import Pool


@dataclass(frozen=True)
class RewardFunctions:
    """What a trainer was given, with models loaded."""

    functions: list[Any]
    names: list[str]
    weights: list[float]
    processing_classes: list[Any]


def load_rewards(
    given: Any,
    args: GRPOConfig,
    processing_classes: Any,
    device: torch.device,
    pool: Pool | None,
) -> RewardFunctions:
    """Those of the environments themselves come last, with weight 1."""
    functions: list[Any] = list(given) if isinstance(given, list) else [given]
    functions = [] if given is None else functions
    tokenizers = processing_classes
    if not isinstance(tokenizers, list):
        tokenizers = [None] * len(functions) if tokenizers is None else [tokenizers]
    if len(tokenizers) != len(functions):
        raise ConfigError(
            f"the number of reward_processing_classes ({len(tokenizers)}) must match the number of "
            f"reward_funcs ({len(functions)})"
        )
    weights = [1.0] * len(functions) if args.reward_weights is None else list(args.reward_weights)
    if len(weights) != len(functions):
        raise ConfigError(
            f"the number of reward_weights ({len(weights)}) must match the number of reward_funcs "
            f"({len(functions)})"
        )
    tokenizers = list(tokenizers)
    for index, function in enumerate(functions):
        if isinstance(function, str):
            functions[index] = function = _load(function, args)
        if isinstance(function, PreTrainedModel):
            tokenizers[index] = _tokenizer(function, tokenizers[index])
            function.to(device).eval()  # pyright: ignore[reportArgumentType]
        elif pool is None and "environments" in inspect.signature(function).parameters:
            raise ConfigError(
                f"the reward function {_name(function)} names `environments`, and there are none: "
                "pass an environment_factory"
            )
    own = [] if pool is None else pool.rewards
    functions, weights = [*functions, *own], [*weights, *(1.0 for _ in own)]
    tokenizers += [None] * len(own)
    return RewardFunctions(functions, [_name(f) for f in functions], weights, tokenizers)


def _load(name: str, args: GRPOConfig) -> Any:
    options = as_dict(args.model_init_kwargs)
    options.pop("trust_remote_code", None)  # refused for the model that is trained
    return from_pretrained(
        AutoModelForSequenceClassification, resolve_model(name), num_labels=1, **options
    )


def _tokenizer(model: Any, given: Any) -> Any:
    tokenizer = given or from_pretrained(AutoTokenizer, model_id(model))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # The model scores the last token that is no padding: it must know which one that is.
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return tokenizer


def _name(function: Any) -> str:
    if isinstance(function, nn.Module):
        return model_id(function).rstrip("/").split("/")[-1]
    name = getattr(function, "__name__", None)
    if name is None and hasattr(function, "func"):  # functools.partial
        name = getattr(function.func, "__name__", None)
    return name or type(function).__name__


Offered = Callable[[int], Mapping[str, Any]]
"""What functions may ask for beside columns, for a call with so many answers."""


def as_rewards(
    rewards: RewardFunctions, offered: Offered, template_arguments: Mapping[str, Any]
) -> list[Reward]:
    """For the scorer, which calls functions that it cannot import in a thread of this process."""
    made: list[Reward] = []
    for index, function in enumerate(rewards.functions):
        name = rewards.names[index]
        name = f"{name}_{index}" if name in rewards.names[:index] else name
        if isinstance(function, nn.Module):
            tokenizer = rewards.processing_classes[index]
            called = _model_reward(function, tokenizer, template_arguments)
        else:
            called = _function_reward(function, offered)
        made.append(Reward(name, called, rewards.weights[index]))
    return made


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _arguments(
    function: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """What the function has a parameter for."""
    given = {name: value for name, value in given.items() if name != "episode"} | dict(offered)
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {name: value for name, value in given.items() if name in {p.name for p in parameters}}


def _scores(returned: Any) -> Any:
    """NaN says "does not apply", as None does."""
    if isinstance(returned, torch.Tensor):
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        return returned
    return [None if isinstance(v, float) and math.isnan(v) else v for v in returned]


def _function_reward(function: Callable[..., Any], offered: Offered) -> Callable[..., Any]:
    """A coroutine function where the function is one."""

    def call(
        prompts: list[Any], completions: list[Any], completion_ids: Any = None, **columns: Any
    ) -> Any:
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        return function(**_arguments(function, given | columns, offered(len(prompts))))

    @functools.wraps(call)
    def reward(*args: Any, **given: Any) -> Any:
        return _scores(call(*args, **given))

    @functools.wraps(call)
    async def async_reward(*args: Any, **given: Any) -> Any:
        return _scores(await call(*args, **given))

    return async_reward if _is_async(function) else reward


def _model_reward(
    model: nn.Module, tokenizer: Any, template_arguments: Mapping[str, Any]
) -> Callable[..., list[float]]:
    """The logit of a sequence-classification model on the prompt with its answer."""

    @torch.inference_mode()
    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        texts = [
            prompt + completion
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(
                [*prompt, *completion], tokenize=False, **template_arguments
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        inputs = encoded(
            tokenizer,
            text=texts,
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        )
        inputs = {name: value.to(next(model.parameters()).device) for name, value in inputs.items()}
        return model(**inputs).logits[:, 0].float().tolist()

    return reward
