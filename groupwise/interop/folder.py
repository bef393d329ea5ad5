"""`groupwise export`: a trained model as a folder of its own or on the hub, an adapter merged.

Merging is done in fp32 and rounded once, to the precision that was trained in. An adapter trained
on quantised weights is merged into those weights dequantised: they are what it was trained on.
"""

import os
import pathlib
import shutil
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.config import Config
from groupwise.errors import ModelError, RunFolderError
from groupwise.policy.adapters import WEIGHTS, base_model_of, is_adapter_folder, merge_adapter
from groupwise.policy.load import pick_device
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.quantization import quantization_config
from groupwise.policy.resolve import resolve_model
from groupwise.recipe import parse, read_yaml
from groupwise.report.model_card import model_card
from groupwise.tracking.run import read_summary
from groupwise.tracking.whole import replace_folder


def export_model(model: str, out: pathlib.Path, *, merge: bool) -> bool:
    """Write a run's (or a folder's) model to `out`; returns whether there was anything to merge."""
    source = pathlib.Path(resolve_model(model))
    if not source.is_dir():
        raise ModelError(f"{model!r} is on the hub already; export takes a run or a model folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} is there already and is not empty; give --out a new folder")
    merging = merge and is_adapter_folder(source)

    def write(folder: pathlib.Path) -> None:
        if merging:
            _write_merged(source, pathlib.Path(model), folder)
        else:
            _check_links(source)
            shutil.copytree(source, folder, dirs_exist_ok=True)

    replace_folder(out, write)
    return merging


def _check_links(source: pathlib.Path) -> None:
    """Refuse links out of the folder: what they lead to would be copied, and uploaded, with it.

    The hub's cache is made of links, to `blobs` beside the snapshot.
    """
    whole = source.resolve()
    within = [whole, *([whole.parent.parent / "blobs"] if whole.parent.name == "snapshots" else [])]
    for path in source.rglob("*"):
        real = pathlib.Path(os.path.realpath(path))
        leads_out = path.is_symlink() and not any(real.is_relative_to(place) for place in within)
        if leads_out or not (path.is_file() or (path.is_dir() and not path.is_symlink())):
            what = f"a link to {real}" if path.is_symlink() else "no plain file"
            raise ModelError(f"{path} is {what}: a model folder to export holds plain files only")


def _write_merged(source: pathlib.Path, run: pathlib.Path, folder: pathlib.Path) -> None:
    config = parse(read_yaml(run / "config.yaml")) if (run / "config.yaml").is_file() else None
    merged = merge_adapter(_base(resolve_model(base_model_of(source)), config), source)
    merged.to(trained_dtype(source)).save_pretrained(folder)
    bare = not (source / "tokenizer_config.json").is_file()
    tokenizer = from_pretrained(AutoTokenizer, base_model_of(source) if bare else source)
    tokenizer.save_pretrained(folder)
    summary = read_summary(run)
    if config is not None and summary is not None:
        card = model_card(config.model_copy(update={"adapter": None}), summary)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _base(name: str, config: Config | None) -> Any:
    """In fp32 and whole: quantised first, where the adapter was trained on quantised weights."""
    if config is None or config.quantization is None:
        return from_pretrained(AutoModelForCausalLM, name, dtype=torch.float32)
    device = pick_device(config.device)
    quantized = from_pretrained(
        AutoModelForCausalLM,
        name,
        dtype=torch.float32,
        device_map={"": device},
        quantization_config=quantization_config(config.quantization, torch.float32, name, device),
    )
    return quantized.dequantize().to("cpu", torch.float32)


def push_model(
    folder: pathlib.Path,
    repository: str,
    *,
    private: bool | None = True,
    token: str | None = None,
    message: str = "Trained with groupwise",
    **options: Any,
) -> str:
    """Upload a model folder; returns where it is. A new repository is private: publish it there."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi(token=token)
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id, folder_path=folder, commit_message=message, **options
        )
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"cannot upload {folder} to {repository!r}: {reason}. Sign in with `hf auth login`, "
            "and name the repository as owner/name"
        ) from error
    return str(address)


def trained_dtype(folder: pathlib.Path) -> torch.dtype:
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return file.get_tensor(next(iter(file.keys()))).dtype
