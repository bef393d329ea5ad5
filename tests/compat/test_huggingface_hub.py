"""What we rely on in huggingface_hub beyond its public interface."""

import pathlib

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from groupwise.compat.huggingface_hub import cache_only


def test_its_constant_is_looked_at_by_every_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with cache_only(True):
        with pytest.raises(OfflineModeIsEnabled):
            huggingface_hub.HfApi().model_info("nobody/nothing")
        with pytest.raises(LocalEntryNotFoundError):
            huggingface_hub.hf_hub_download("nobody/nothing", "config.json", cache_dir=tmp_path)
    assert constants.HF_HUB_OFFLINE is False
    with cache_only(False):
        assert constants.HF_HUB_OFFLINE is False


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with cache_only(False):
        assert constants.HF_HUB_OFFLINE is True
    assert constants.HF_HUB_OFFLINE is True
