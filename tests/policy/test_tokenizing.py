"""A panic of tokenizers is one error wherever a tokenizer is called."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import groupwise
from groupwise.environments.chat import PlainChat
from groupwise.errors import ModelError
from groupwise.policy.load import load_policy
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.prompts import decode, decode_all
from groupwise.policy.resolve import TINY
from groupwise.policy.tokenizing import encoded, text_of, tokens_of
from groupwise.rollout.stopping import StopStrings

STRIPS = {"type": "Strip", "content": "7", "start": 0, "stop": 9}
"""tokenizers breaks on the text "7", from which it takes nine characters."""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = shutil.copytree(TINY, tmp_path / "model")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder": STRIPS}))
    return folder


@pytest.fixture
def tokenizer(folder: pathlib.Path) -> Any:
    return from_pretrained(AutoTokenizer, folder)


def test_a_decoder_that_breaks_is_one_error(tokenizer: Any) -> None:
    seven = tokens_of(tokenizer, "7")
    for call in (
        lambda: text_of(tokenizer, seven),
        lambda: decode(seven, tokenizer, ()),
        lambda: decode_all([seven, seven], tokenizer, ()),
        lambda: StopStrings(("x",), tokenizer).just_ended(seven),
    ):
        with pytest.raises(ModelError, match="tokenizer cannot be used: index out of bounds"):
            call()
    assert text_of(tokenizer, tokens_of(tokenizer, "8")) == "8"


def test_one_that_breaks_on_text_is_one_error() -> None:
    settings = json.loads((TINY / "tokenizer.json").read_text())
    settings["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(settings)), eos_token="<|end|>"
    )
    for call in (
        lambda: encoded(tokenizer, ["3+4="]),
        lambda: PlainChat(tokenizer).opening([{"role": "user", "content": "3+4="}], ()),
    ):
        with pytest.raises(ModelError, match="chunk size must be non-zero"):
            call()


def test_training_through_python_ends_with_that_error(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ModelError, match="tokenizer cannot be used"):
        groupwise.train(
            "demo",
            tmp_path / "run",
            model=str(folder),
            steps=1,
            device="cpu",
            task={"train_size": 8, "test_size": 8},
            batch={"prompts": 2, "group_size": 4},
            rollout={"max_completion_tokens": 16},
            eval={"problems": 8},
            tracking={"tensorboard": False},
        )


def test_what_is_no_panic_stays_as_it_is() -> None:
    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoded(interrupted, "3+4=")


def test_a_model_is_refused_at_once_where_one_digit_breaks_its_decoder(
    folder: pathlib.Path,
) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"content": "7"', '"content": "1"'))
    with pytest.raises(ModelError, match="PanicException"):
        load_policy(str(folder), torch.device("cpu"), torch.float32)
