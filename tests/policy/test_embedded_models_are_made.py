"""The script that made the embedded model: what it writes is what is embedded."""

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
