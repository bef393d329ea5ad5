"""Token texts: one for each token, together the whole, found without a network."""

import json
import pathlib
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from groupwise.view.catalog import Run
from groupwise.view.token_text import EMBEDDED, run_decoder, token_texts


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A token a byte, so that most characters of the world take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore
    return tokenizer


def test_a_character_appears_with_the_token_that_completes_it(byte_level: Tokenizer) -> None:
    texts = token_texts(byte_level, byte_level.encode("aé👍").ids)
    assert texts == ["a", "", "é", "", "", "", "👍"]


@settings(deadline=None)
@given(st.text(max_size=30))
def test_texts_add_up_to_the_decoded_whole(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text).ids
    texts = token_texts(byte_level, ids)
    assert len(texts) == len(ids) and "".join(texts) == byte_level.decode(ids)


def test_ids_that_no_tokenizer_knows_are_shown_as_numbers(byte_level: Tokenizer) -> None:
    ids = [-1, 10**6, 2**40, *byte_level.encode("b").ids]
    assert token_texts(byte_level, ids) == ["<-1>", "<1000000>", f"<{2**40}>", "b"]


def test_the_tokenizer_is_looked_for_in_the_run_then_where_it_started(
    tmp_path: pathlib.Path,
) -> None:
    run = Run("id", "run", tmp_path)
    assert run_decoder(run, "owner/name") is None and run_decoder(run, "") is None
    ids = Tokenizer.from_file(str(EMBEDDED)).encode("12+3").ids
    for folder in ("checkpoints/step-000010/model", "best", "model"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(EMBEDDED, tmp_path / folder / "tokenizer.json")
        decode = run_decoder(run, "owner/name")
        assert decode is not None and "".join(decode(ids)) == "12+3"
        shutil.rmtree(tmp_path / folder)
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "tokenizer.json").write_text("{broken")
    decode = run_decoder(run, "tiny")
    assert decode is not None and "".join(decode(ids)) == "12+3"


def test_tokens_on_whose_text_the_library_breaks_are_shown_by_name() -> None:
    strips = {"type": "Strip", "content": "7", "start": 0, "stop": 9}
    settings = {**json.loads(EMBEDDED.read_text()), "decoder": strips}
    broken = Tokenizer.from_str(json.dumps(settings))
    assert token_texts(broken, broken.encode("37=").ids) == ["3", "7", "="]
