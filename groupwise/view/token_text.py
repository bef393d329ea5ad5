"""Token ids to texts, by the run's own tokenizer file, without transformers and without a network.

Some tokens are no whole character: the character appears with the token that completes it, and
those before it are empty. Where no tokenizer is at hand, pages show an answer's text instead.
"""

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from groupwise.policy.tokenizing import panics_told
from groupwise.view.cards import Decoder
from groupwise.view.catalog import Run

FILE = "tokenizer.json"
LARGEST_FILE = 200_000_000
EMBEDDED = pathlib.Path(__file__).parent.parent / "policy" / "tiny" / FILE
HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


def run_decoder(run: Run, model: str) -> Decoder | None:
    """A decoder from the run's models, else from the model that it started from; or None."""
    from tokenizers import Tokenizer

    for path in _candidates(run, model):
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_FILE:
                tokenizer = panics_told(Tokenizer.from_file, str(path))
                return lambda ids: token_texts(tokenizer, ids)
        except Exception:  # tokenizers raises plain Exception for a file that it cannot read
            continue
    return None


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One text for each id; together they are the decoded whole, special tokens included."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    texts = []
    for id in ids:
        if tokenizer.id_to_token(id) is None if 0 <= id < 2**32 else True:
            texts.append(f"<{id}>")
            continue
        try:
            texts.append(panics_told(stream.step, tokenizer, id) or "")
        except Exception:  # a sequence that it cannot decode as a stream: by itself, then
            stream = DecodeStream(skip_special_tokens=False)
            texts.append(tokenizer.id_to_token(id))
    return texts


def _candidates(run: Run, model: str) -> Iterator[pathlib.Path]:
    for folder in ("model", "best"):
        yield from _inside(run, folder)
    checkpoints = run.path / "checkpoints"
    if checkpoints.is_dir():
        for folder in sorted((p.name for p in checkpoints.glob("step-*")), reverse=True):
            yield from _inside(run, "checkpoints", folder, "model")
    if model == "tiny":
        yield EMBEDDED
    elif pathlib.Path(model).is_dir():
        yield pathlib.Path(model) / FILE
    elif HUB_ID.fullmatch(model):
        yield from _in_hub_cache(model)


def _inside(run: Run, *folders: str) -> Iterator[pathlib.Path]:
    try:
        yield run.file(*folders, FILE)
    except FileNotFoundError:
        return


def _in_hub_cache(model: str) -> Iterator[pathlib.Path]:
    """What an earlier download left; nothing is fetched to look at a run."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, FILE)
    if isinstance(path, str):
        yield pathlib.Path(path)
