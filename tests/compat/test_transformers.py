"""What we rely on in transformers beyond its public interface."""

from typing import Any

import torch
from jinja2 import nodes
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from groupwise.compat.transformers import (
    attn_implementation,
    callback_handler,
    decode_together,
    has_attention_interface,
    is_adapter_checkpoint,
    no_split_modules,
    parsed_chat_template,
    routed,
    routed_attention,
    set_checkpoint_function,
)
from small_models import random_model


def test_models_and_configs_have_the_attributes_that_we_read() -> None:
    assert isinstance(PreTrainedConfig._attn_implementation, property)
    for name in ("is_backend_compatible", "_hf_peft_config_loaded", "_no_split_modules"):
        assert hasattr(PreTrainedModel, name), name
    model = random_model()
    assert has_attention_interface(model)
    assert not is_adapter_checkpoint(model)
    assert no_split_modules(model) == ["LlamaDecoderLayer"]


def test_callbacks_are_called_in_order_and_what_they_want_is_kept() -> None:
    called: list[str] = []

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> Any:
            called.append("stops")
            control.should_training_stop = True

    class Looks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **more: Any) -> None:
            called.append(f"{control.should_training_stop} {more['model']}")

    handler = callback_handler([Stops, Looks()], "a model", None)
    assert [type(one) for one in handler.callbacks] == [Stops, Looks]
    control = handler.on_step_end(None, TrainerState(), TrainerControl())
    assert control.should_training_stop and called == ["stops", "True a model"]


def test_a_models_attention_is_named_by_its_config_and_comes_back() -> None:
    model = random_model()
    own = model.config._attn_implementation
    with attn_implementation(model, "eager"):
        assert model.config._attn_implementation == "eager" != own
    assert model.config._attn_implementation == own


def test_attention_layers_have_the_config_of_their_model_and_find_their_function_in_it() -> None:
    model, other = random_model(), random_model()
    config = model.model.layers[0].self_attn.config
    assert config is model.config is not other.config
    with routed_attention(model, "eager", "outer"):
        with routed_attention(model, "eager", "inner"):
            assert routed(config) == "inner" and routed(other.config) is None
        assert routed(config) == "outer"
    assert routed(config) is None and "groupwise" not in str(config.to_dict())


def test_layers_run_under_the_checkpoint_function_that_was_set() -> None:
    model = random_model().train()
    layers = []

    def function(layer, *inputs, **options):
        layers.append(layer)
        return layer(*inputs, **options)

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    set_checkpoint_function(model, function)
    model(torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert len(layers) == model.config.num_hidden_layers


def test_a_chat_template_is_parsed_by_the_environment_that_renders_it() -> None:
    tree = parsed_chat_template("{% generation %}{{ 2 ** 3 }}{% endgeneration %}")
    assert next(tree.find_all(nodes.Pow)) is not None


def test_answers_are_decoded_together_as_one_by_one_unless_a_tokenizer_has_its_own_way() -> None:
    class Own(PreTrainedTokenizerFast):
        def decode(self, *args: Any, **kwargs: Any) -> str:
            return "own"

    words = {f"word{n}": n for n in range(20)}
    backend = Tokenizer(models.WordLevel(words, unk_token="word0"))
    plain = PreTrainedTokenizerFast(tokenizer_object=backend)
    rows = [(5, 6, 7), (), (8,), tuple(range(20))]
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    one_by_one = [plain.decode(list(row), **options) for row in rows]
    assert decode_together(plain, rows) == one_by_one
    assert decode_together(Own(tokenizer_object=backend), rows) is None
