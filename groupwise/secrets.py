"""Secrets are masked in every text that is shown, logged or kept: errors, run folders, reports.

What counts as one: the value of an environment variable whose name says so (OPENAI_API_KEY,
HF_TOKEN), a setting or a query parameter whose name says so (my_token, but not max_tokens), the
user and password of an address, and text in the form that well-known services give their keys.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from groupwise.errors import ConfigError

MASK = "***"
SHORTEST = 8
"""Shorter values of environment variables are words rather than keys."""
SMALL = 10**5
"""Numbers below are counts and positions of tokens."""

_NAME = (
    r"(?:[\w.-]*[_.-])?(?:(?:api|access|auth|secret|private)[_-]?key|secret|password|passwd|pwd"
    r"|credentials?|authorization|cookie|signature"
    r"|(?:access|api|auth|bearer|hf|id|refresh|session)[_-]?token)"
)
_ALWAYS = frozenset(
    (
        "apikey", "authorization", "bearer", "cookie", "credential", "passphrase", "passwd",
        "password", "pwd", "secret", "signature",
    )
)  # fmt: skip
_OPENING = frozenset(("access", "api", "auth", "bearer", "hf", "private", "refresh", "session"))
"""Before "keys" and "tokens": those of anything else are more often counted or listed."""
_HARMLESS = {
    "token": frozenset(
        (
            "audio", "begin", "bos", "cls", "end", "eos", "first", "image", "last", "mask", "max",
            "min", "n", "new", "next", "num", "pad", "per", "sep", "special", "start", "stop",
            "think", "total", "unk", "video",
        )
    ),
    "key": frozenset(
        (
            "answer", "cache", "choice", "column", "completion", "data", "dataset", "dict", "field",
            "foreign", "group", "id", "image", "index", "input", "join", "json", "label",
            "message", "messages", "metric", "order", "output", "partition", "primary", "problem",
            "prompt", "public", "question", "reference", "response", "reward", "row", "score",
            "shard", "solution", "sort", "state", "target", "text", "tool", "unique",
        )
    ),
}  # fmt: skip
"""Words before "token" and "key" that make them a piece of text and the name of a column."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_JOINED = re.compile(r"(\w+)((?:token|secret|password|passphrase)s?)")
_COLUMN = re.compile(r"[A-Za-z_]{1,30}")
_ASSIGNED = re.compile(r"\b([A-Za-z][\w.-]{0,60})([\"']?\s*[:=]\s*[\"']?)([\w.~+/=-]{8,})")
_IS_SECRET_VARIABLE = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)")
_ARE_HEADERS = re.compile(r"(?:\w+_)?headers", re.I)
_IS_MASKED = re.compile(r"\*{3}|\w+://(?:\*{3}@.*|[^?]*\?(?:.*[&;])?[\w.-]+=\*{3}.*)", re.S)
_FORMS = (
    # http://user:password@host
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^/?#\s\"'<>]*@"), rf"\1{MASK}@"),
    (re.compile(rf"([?&;](?:{_NAME}|key|token|sig)=)[^&#\s\"'<>]+", re.I), rf"\1{MASK}"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I), rf"\1 {MASK}"),
    (re.compile(rf"\b({_NAME}[\"']?\s*[:=]\s*[\"']?)[\w.~+/=-]{{8,}}", re.I), rf"\1{MASK}"),
    (
        re.compile(
            r"\b(?:(?:sk|pk|rk|nvapi|xox[abprs])-[\w-]{16,}|(?:hf|gh[pousr]|github_pat)_\w{16,}"
            r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,})"
        ),
        MASK,
    ),
)  # fmt: skip


def masked(text: str, *secrets: str | None) -> str:
    """`text` with `***` in place of `secrets` and of all else that looks like one.

    >>> masked("http://me:pass@host/v1?api_key=abc&n=1 said no to Bearer 0123456789")
    'http://***@host/v1?api_key=***&n=1 said no to Bearer ***'
    """
    known = [
        value
        for name, value in os.environ.items()
        if len(value) >= SHORTEST and _IS_SECRET_VARIABLE.fullmatch(name)
    ]
    told = [secret for secret in secrets if secret and len(secret) > 3]
    for secret in sorted({*told, *known}, key=len, reverse=True):
        text = text.replace(secret, MASK).replace(quote(secret, safe=""), MASK)
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(_unassigned, text)


def _unassigned(found: re.Match[str]) -> str:
    """Of running text only what has a digit: "the public part of the api_key: optional"."""
    name, between, value = found.groups()
    secret = name not in ("key", "token") and re.search(r"\d", value) and names_secret(name, value)
    return f"{name}{between}{MASK}" if secret else found[0]


def without_secrets(tree: Any) -> Any:
    """Settings with secrets masked: {"api_key": "abc"} is {"api_key": "***"}.

    Headers are masked whole: services have names of their own for the one that holds a key.
    """
    if isinstance(tree, Mapping):
        return {name: _setting(str(name), value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(value) for value in tree]
    return masked(tree) if isinstance(tree, str) else tree


def masked_settings(settings: Any, name: str) -> Iterator[str]:
    """The names of settings from a run folder whose secrets were masked there."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from masked_settings(value, f"{name}.{key}")
    elif isinstance(settings, list | tuple):
        for number, value in enumerate(settings):
            yield from masked_settings(value, f"{name}.{number}")
    elif isinstance(settings, str) and _IS_MASKED.fullmatch(settings):
        yield name


def check_whole(settings: Any, name: str) -> None:
    """Refuse settings from a run folder whose secrets were masked, where they are to be used."""
    for masked_one in masked_settings(settings, name):
        raise ConfigError(
            f"{masked_one} was masked: a run folder keeps no secrets, so it cannot be used as it "
            "is stored there. Name the recipe again, or give the setting on the command line"
        )


def names_secret(name: str, value: object) -> bool:
    """Whether the name of a setting says that its value is one, as it is often called.

    >>> [names_secret(n, "x7") for n in ("my_token", "apiKey", "max_tokens", "pad_token", "key_lr")]
    [True, True, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name.rpartition(".")[2])]
    if not words:
        return False
    if joined := _JOINED.fullmatch(words[-1]):  # mytoken
        words[-1:] = joined.groups()
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if last in ("keys", "tokens"):
        return before in _OPENING
    if last.removesuffix("s") in _ALWAYS:
        return True
    if last not in _HARMLESS or not isinstance(value, str | int):
        return False
    if isinstance(value, int) and abs(value) < SMALL:
        return False
    if last == "key" and not before and isinstance(value, str):
        return not _COLUMN.fullmatch(value)
    return before not in _HARMLESS[last]


def _setting(name: str, value: Any) -> Any:
    if value in ("", None) or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [_setting(name, item) for item in value]
    if isinstance(value, Mapping):
        whole = _ARE_HEADERS.fullmatch(name) or names_secret(name, value)
        return dict.fromkeys(value, MASK) if whole else without_secrets(value)
    return MASK if names_secret(name, value) else without_secrets(value)
