"""The scripts that made the embedded models: what they write is what is embedded."""

import hashlib
import re
from pathlib import Path
from random import Random

import pytest

import groupwise.policy

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
POLICY = Path(groupwise.policy.__file__).parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_the_tokenizer_is_what_the_script_makes(tmp_path: Path) -> None:
    import make_tiny as script  # type: ignore

    tokenizer = script.make_tokenizer(script.VOCABULARY, script.tokenizer_texts(Random(0)))
    tokenizer(["7"], padding=True)  # as `measure` does: a tokenizer keeps how it padded last
    tokenizer.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / file).read_bytes() == (POLICY / "tiny" / file).read_bytes(), file


def test_the_tokenizer_that_knows_tools_is_what_the_script_makes(tmp_path: Path) -> None:
    import make_tiny_tools as script  # type: ignore

    tokenizer = script.make_tokenizer(script.VOCABULARY, script.tokenizer_texts(Random(0)))
    tokenizer.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / file).read_bytes() == (POLICY / "tiny_tools" / file).read_bytes(), file


def test_the_weights_are_those_that_the_page_beside_them_names() -> None:
    folder = POLICY / "tiny_tools"
    named = re.findall(r"sha256 ([0-9a-f]{64})", (folder / "README.md").read_text())
    assert named == [hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()]


def test_what_is_learned_of_a_careful_game_halves_what_is_left_after_slips_too() -> None:
    import make_tiny_tools as script  # type: ignore

    slips = 0
    for seed in range(50):
        row, text = script.guessing_row(Random(seed), 1.0), ""
        for read, learned in zip(row[::2], row[1::2], strict=True):
            low, high = _left(text := text + read)
            halving = f"<think>{low}-{high}</think><answer>{(low + high) // 2}</answer><|end|>"
            assert learned == halving
            slips += len(re.findall(r"<answer>\d", read))
            text += learned
    assert slips > 20


def _left(game: str) -> tuple[int, int]:
    """The bounds after all that was said."""
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", game)[0])
    for guess, said in re.findall(r"<answer>(\d+)</answer><\|end\|><\|user\|>(\w+)", game):
        low = max(low, int(guess)) if said == "higher" else low
        high = min(high, int(guess)) if said == "lower" else high
    return low, high
