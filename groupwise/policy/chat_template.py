"""Render a model's chat template, which is a program written by whoever made the model.

transformers renders it in jinja's sandbox (`ImmutableSandboxedEnvironment`), so it reaches nothing
but its inputs. Here its time is limited as well, and whatever it raises becomes a ModelError.
"""

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import nodes

from groupwise.compat.threads import raise_in
from groupwise.compat.transformers import compile_chat_template, parsed_chat_template
from groupwise.errors import ModelError, shortened
from groupwise.policy.template_limits import LONGEST, bounded, joined

SECONDS = 10.0
"""Limit for one conversation. Real templates take less than a thousandth of it."""
LOOK_EVERY = 0.1
SLOW, PATIENCE = 0.1, 30.0
"""A template that takes more than `SLOW` on average is given up after `PATIENCE`, in seconds of
computing: thousands of prompts are rendered before a run begins."""


@dataclass
class _Spent:
    """How much was rendered with one template so far, and how long that took."""

    count: int = 0
    seconds: float = 0.0


class _TooLong(BaseException):
    """Not an Exception, so that no `except Exception` on the way catches it."""


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The conversation as text. Raises ModelError."""
    own = tokenizer.chat_template
    try:
        for template in own.values() if isinstance(own, dict) else [own]:
            _check(template)
        turns, spent, began = [dict(m) for m in messages], _spent(str(own)), time.thread_time()
        with _limited(SECONDS):
            text = tokenizer.apply_chat_template(turns, tokenize=False, **options)
        spent.count, spent.seconds = spent.count + 1, spent.seconds + time.thread_time() - began
        if spent.seconds > max(PATIENCE, SLOW * spent.count):
            raise ValueError(f"it takes {spent.seconds / spent.count:.2g} s for a conversation")
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"it writes more than {LONGEST} characters")
        text.encode()
        return text
    except _TooLong:
        reason = f"it takes longer than {SECONDS:g} s"
    except Exception as error:  # templates are code of the model's author
        reason = shortened(str(error) or type(error).__name__)
    roles = ", ".join(str(message.get("role")) for message in messages)
    raise ModelError(
        f"the model's chat template cannot render a conversation (roles: {shortened(roles)}): "
        f"{reason}. Some templates know no system role: leave the system prompt out"
    )


@lru_cache(maxsize=16)
def _spent(template: str) -> _Spent:
    return _Spent()


@lru_cache(maxsize=16)
def _check(template: str) -> None:
    """`9**9**9` or `'x' * 10000000000` is one operation, which nothing can interrupt."""
    tree = parsed_chat_template(template)
    if next(tree.find_all(nodes.Pow), None) is not None:
        raise ValueError("it computes powers, which no template needs")
    values = [node.value for node in tree.find_all(nodes.Const)]
    numbers = [value for value in values if isinstance(value, int)]
    widths = [value for value in values if isinstance(value, str) and _WIDE.search(value)]
    if widths or any(abs(number) > LONGEST for number in numbers):
        raise ValueError(f"it has numbers beyond {LONGEST}, which no template needs")
    compile_chat_template(template, bounded, joined)


_WIDE = re.compile(r"\d{9}")
"""In a text that may be a format: '{:999999999}'."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise _TooLong in this thread after so long, wherever Python code then is."""
    watch = _watch_of_this_thread()
    try:
        with watch.lock:
            watch.until, watch.fired = time.monotonic() + seconds, False
        yield
    except _TooLong:
        watch.fired = False
        raise
    finally:
        with watch.lock:
            watch.until = math.inf
        while watch.fired:  # it must not arrive later, somewhere else
            time.sleep(0.001)


class _Watch(threading.Thread):
    """Looks at how long one thread has been rendering. Prompts come by the thousand: a thread for
    each of them would take longer than to render it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.renders = threading.current_thread()
        self.lock = threading.Lock()
        self.until = math.inf
        self.fired = False

    def run(self) -> None:
        while self.renders.is_alive():
            time.sleep(LOOK_EVERY)
            with self.lock:
                if time.monotonic() > self.until:
                    self.until, self.fired = time.monotonic() + LOOK_EVERY, True
                    raise_in(self.renders, _TooLong)


_watches = threading.local()


def _watch_of_this_thread() -> _Watch:
    watch = getattr(_watches, "watch", None)
    if watch is None or not watch.is_alive():  # a fork leaves threads behind
        watch = _watches.watch = _Watch()
        watch.start()
    return watch
