"""A model folder that is exported: plain files only, whoever made it."""

import os
import pathlib
import shutil

import pytest

from groupwise.errors import ModelError
from groupwise.interop.folder import export_model
from groupwise.policy.resolve import TINY


@pytest.mark.parametrize("target", ["/", "/etc/passwd", "../secret.txt", "nowhere"])
def test_what_a_link_leads_to_is_not_exported(target: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    model = shutil.copytree(TINY, tmp_path / "model")
    (model / "vocab.json").symlink_to(target)
    with pytest.raises(ModelError, match=r"vocab\.json is a link to"):
        export_model(str(model), tmp_path / "out", merge=False)
    assert not (tmp_path / "out").exists()


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: pathlib.Path) -> None:
    model = shutil.copytree(TINY, tmp_path / "model")
    os.mkfifo(model / "more.json")
    with pytest.raises(ModelError, match=r"more\.json is no plain file"):
        export_model(str(model), tmp_path / "out", merge=False)


def test_links_of_the_hubs_cache_are_followed(tmp_path: pathlib.Path) -> None:
    model = shutil.copytree(TINY, tmp_path / "models--a--b" / "snapshots" / "main")
    (model.parent.parent / "blobs").mkdir()
    config = (model / "config.json").rename(model.parent.parent / "blobs" / "0123")
    (model / "config.json").symlink_to(config)
    export_model(str(model), tmp_path / "out", merge=False)
    assert (tmp_path / "out" / "config.json").read_bytes() == config.read_bytes()
