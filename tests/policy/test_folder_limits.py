"""Model folders whose settings ask for what would never end, fill memory or bring code along."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groupwise.config import AdapterSettings
from groupwise.errors import ModelError
from groupwise.policy.adapters import merge_adapter
from groupwise.policy.folder_limits import check_settings
from groupwise.policy.load import Policy, load_policy
from groupwise.policy.prompts import tokenize_prompts
from groupwise.policy.resolve import TINY
from groupwise.types import Problem

CPU = torch.device("cpu")
FOR_EVER = r"(\w+\.?)+!"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(TINY, tmp_path / "model")


def load(folder: pathlib.Path) -> Policy:
    return load_policy(str(folder), CPU, torch.float32)


def edit(file: pathlib.Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_hidden_layers", 100_000),
        ("num_hidden_layers", 10**30),
        ("num_hidden_layers", -1),
        ("num_labels", 10**9),
    ],
)
def test_a_model_with_more_layers_than_any_or_less_than_none_is_refused_at_once(
    folder: pathlib.Path, name: str, value: int
) -> None:
    edit(folder / "config.json", **{name: value})
    with pytest.raises(ModelError, match=f"asks for {name}={value}"):
        load(folder)


def test_settings_of_a_part_of_the_model_count_too() -> None:
    with pytest.raises(ModelError, match=r"text_config\.num_experts"):
        check_settings("model", {"text_config": {"num_experts": 10**9}})
    check_settings("model", {"max_position_embeddings": 10**9, "block_size": 32_768})
    check_settings("model", {"vision_feature_layer": -2, "text_config": {"n_layer": 30}})


@pytest.mark.parametrize(
    "settings",
    [
        {"_attn_implementation": "somebody/kernel"},
        {"attn_implementation": {"text_config": "somebody/kernel@main:attention"}},
        {"experts_implementation": "somebody/kernel"},
    ],
)
def test_code_on_the_hub_that_a_config_names_is_not_loaded(
    folder: pathlib.Path, settings: dict[str, Any]
) -> None:
    edit(folder / "config.json", **settings)
    with pytest.raises(ModelError, match="names code on the hub to run"):
        load(folder)


def replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    how = {"behavior": "Isolated", "invert": False}
    return {"type": "Split", "pattern": {"Regex": pattern}, **how}


WORDS = {
    "type": "WordPiece",
    "unk_token": "?",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 10**9,
    "vocab": {"?": 0, "a": 1},
}


def many(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"normalizer": replaced(r"(a+)+$", "x")}, "repeats what repeats itself"),
        ({"normalizer": many(*[replaced(".", "a" * 20)] * 9)}, "1000 times longer"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 10**7}}, "1000 times longer"),
        ({"decoder": replaced(r"(a|a)*$", "x")}, "repeats what repeats itself"),
        ({"normalizer": replaced(r"a*b", "x")}, "grows much faster than the text"),
        ({"pre_tokenizer": split(r"\w+(?=!)")}, "grows much faster than the text"),
        ({"model": WORDS}, "looks up words of 1000000000 characters"),
    ],
)
def test_a_tokenizer_that_may_never_end_or_fill_memory_is_refused(
    folder: pathlib.Path, changes: dict[str, Any], reason: str
) -> None:
    edit(folder / "tokenizer.json", **changes)
    with pytest.raises(ModelError, match=reason):
        load(folder)


def test_a_tokenizer_on_which_its_library_breaks_is_one_error(folder: pathlib.Path) -> None:
    second = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
    edit(
        folder / "tokenizer.json",
        post_processor={**second, "single": [{"Sequence": {"id": "B", "type_id": 0}}]},
    )
    with pytest.raises(ModelError, match="PanicException"):
        load(folder)


def test_one_that_breaks_on_a_prompt_is_one_error() -> None:
    class PanicException(BaseException):  # as tokenizers raises it
        pass

    class Broken:
        chat_template = None

        def __call__(self, *texts: Any, **options: Any) -> Any:
            raise PanicException("index out of bounds")

    with pytest.raises(ModelError, match="index out of bounds"):
        tokenize_prompts([Problem("p", "3+4=")], Broken())


@pytest.fixture(scope="module")
def saved_adapter(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("adapter")
    policy = load_policy("tiny", CPU, torch.float32, adapter=AdapterSettings(rank=4))
    assert policy.adapter is not None
    policy.adapter.save(folder)
    return folder


def merged(folder: pathlib.Path) -> None:
    merge_adapter(load_policy("tiny", CPU, torch.float32).model, folder)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"r": 10**9}, "says rank 1000000000, its weights 4"),
        ({"rank_pattern": {"q_proj": 10**8}}, "says rank 100000000"),
        ({"layer_replication": [[0, 2]] * 20_000}, "repeats more than 10000 layers"),
        ({"target_modules": FOR_EVER}, "takes longer than"),
        ({"rank_pattern": {FOR_EVER: 4}}, "takes longer than"),
    ],
)
def test_an_adapter_that_asks_for_too_much_is_refused(
    saved_adapter: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr("groupwise.policy.folder_limits.PATTERN_SECONDS", 0.3)
    folder = shutil.copytree(saved_adapter, tmp_path / "adapter")
    edit(folder / "adapter_config.json", **changes)
    with pytest.raises(ModelError, match=reason):
        merged(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda targets: {"target_modules": targets},
        lambda targets: {"target_modules": f"model.layers.*({'|'.join(targets)})"},
    ],
)
def test_adapters_as_people_have_them_are_loaded(
    saved_adapter: pathlib.Path,
    tmp_path: pathlib.Path,
    change: Callable[[list[str]], dict[str, Any]],
) -> None:
    folder = shutil.copytree(saved_adapter, tmp_path / "adapter")
    own = json.loads((folder / "adapter_config.json").read_text())
    edit(folder / "adapter_config.json", **change(own["target_modules"]))
    merged(folder)
