"""The hub is asked once, and where it does not answer nobody tries it again."""

import io
import pathlib
from collections.abc import Iterator
from email.message import Message
from typing import Any
from urllib.error import HTTPError, URLError

import huggingface_hub
import pytest
from huggingface_hub import constants

from groupwise import hub
from groupwise.check.plan import shape_of
from groupwise.errors import DataError, ModelError
from groupwise.policy.pretrained import from_pretrained
from groupwise.tasks.hub import load_splits


@pytest.fixture(autouse=True)
def _as_without_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._asked.cache_clear()
    yield
    hub._asked.cache_clear()


def answer_with(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[float]:
    """What every request is answered with; the list gets the time-outs of those made."""
    asked: list[float] = []

    def urlopen(request: object, timeout: float) -> io.BytesIO:
        asked.append(timeout)
        if error is not None:
            raise error
        return io.BytesIO()

    monkeypatch.setattr(hub, "urlopen", urlopen)
    return asked


def test_it_is_asked_once_and_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, None)
    assert [hub.ask_hub().online for _ in range(3)] == [True] * 3
    assert len(asked) == 1 and asked[0] <= 5
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.ask_hub().online


def test_an_error_page_is_an_answer_and_a_wrong_address_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_with(monkeypatch, HTTPError("", 404, "Not Found", Message(), None))
    assert hub.ask_hub().online and "404" in hub.ask_hub().text
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc/passwd")
    assert not hub.ask_hub().online


def test_a_plan_and_a_dataset_without_a_network_try_the_cache_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answer_with(monkeypatch, URLError("no route"))
    offline: list[bool] = []

    def not_cached(*_: Any, **__: Any) -> str:
        offline.append(constants.is_offline_mode())
        raise OSError("not cached")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", not_cached)
    monkeypatch.setattr("datasets.load_dataset", not_cached)
    with pytest.raises(ModelError, match="not cached"):
        shape_of("nobody/nothing")
    with pytest.raises(DataError, match="not cached"):
        load_splits("nobody/nothing", None)
    assert offline == [True, True] and len(asked) == 1
    assert not constants.is_offline_mode()


def test_a_model_of_the_hub_is_looked_for_in_the_cache_alone_and_a_folder_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    asked = answer_with(monkeypatch, URLError("no route"))
    offline: list[bool] = []

    class Auto:
        @staticmethod
        def from_pretrained(source: str, **options: Any) -> str:
            offline.append(constants.is_offline_mode())
            return "local" if options.get("local_files_only") else "hub"

    assert from_pretrained(Auto, str(tmp_path)) == "local" and not asked
    assert from_pretrained(Auto, "nobody/nothing") == "hub"
    assert offline == [False, True] and len(asked) == 1
