"""Decoder layers run by torch.compile: compiled once for all of them.

Norms, rotary embeddings and gates are many small operations, each of which reads and writes whole
activations. Compiled they are a few kernels, forward and backward, and less is kept in between. All
layers of a model have the same code, so compiling one serves all: seconds, where the whole model
would take minutes. A layer that the compiler cannot compile runs without it.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils import checkpoint

from groupwise.compat.threads import raise_in
from groupwise.compat.torch_compile import any_number_of_rows
from groupwise.compat.torch_modules import replaced_forwards
from groupwise.config import Config

log = logging.getLogger("groupwise")

Params = ParamSpec("Params")
Result = TypeVar("Result")

_uncompilable: set[type[nn.Module]] = set()
_in_background: dict[type[nn.Module], threading.Thread] = {}
"""Threads that compile layers of these kinds."""


def compiles_sampling(device: torch.device, config: Config) -> bool:
    """With `auto` nothing is on a CPU: there it takes a minute, and steps are no faster."""
    return config.compile != "none" and (config.compile != "auto" or device.type != "cpu")


def compiles_training(device: torch.device, config: Config) -> bool:
    return config.compiles_training and compiles_sampling(device, config)


@contextmanager
def compiled_layers(model: Any, on: bool) -> Iterator[None]:
    """While this is open, the model's layers are compiled ones (if `on`); backward included."""
    layers = (decoder_layers(model) or []) if on else []
    for kind in {type(layer) for layer in layers}:
        if kind in _in_background:
            _in_background[kind].join()
    with replaced_forwards({layer: partial(_run, layer) for layer in layers}):
        yield


@contextmanager
def in_background(kind: type[nn.Module], compile_layer: Callable[[], None]) -> Iterator[None]:
    """While this is open, a thread compiles layers of this kind; `compiled_layers` waits for it."""
    threads = torch.get_num_threads()

    def work() -> None:
        torch.set_num_threads(threads)  # compiled code is for so many, and each thread has its own
        try:
            compile_layer()
        except SystemExit:
            pass
        except Exception as error:  # it is for the layers' own run to fail, or to do without
            log.info("layers are not compiled ahead: %s", str(error).split("\n")[0])

    _in_background[kind] = thread = threading.Thread(target=work, name="compile")
    thread.start()
    try:
        yield
    finally:
        _in_background.pop(kind, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of autograd, where it was interrupted
            raise_in(thread, SystemExit)  # if it still runs when Python ends, the process aborts
            thread.join()


def uncompiled(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Never compile this function: its loop over sequences would be unrolled."""
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType]


def decoder_layers(model: Any) -> Sequence[nn.Module] | None:
    """The one list of modules that has as many entries as the model has layers."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return list(lists[0]) if len(lists) == 1 else None


def _run(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    kind = type(layer)
    if kind not in _uncompilable:
        try:
            return compiled_forward(kind)(layer, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler can fail in any way; the layer itself always works
            if type(error).__module__ == checkpoint.__name__:
                raise  # how a layer that is computed again is left, once it has what was missing
            log.warning("layers run without torch.compile: %s", str(error).split("\n")[0])
            _uncompilable.add(kind)
    return kind.forward(layer, *args, **kwargs)


@cache
def compiled_forward(kind: type[nn.Module]) -> Any:
    """A layer's forward, for any number of rows and tokens: both differ at every step."""
    return torch.compile(kind.forward, dynamic=True, options=any_number_of_rows() or None)
