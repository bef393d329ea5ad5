"""Secrets are masked in every text that is shown, logged or kept: errors, run folders, reports.

What counts as one: the value of an environment variable whose name says so (OPENAI_API_KEY,
HF_TOKEN), a setting or a query parameter whose name says so, the user and password of an address,
and text in the form that well-known services give their keys.
"""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

MASK = "***"
SHORTEST = 8
"""Shorter values of environment variables are words rather than keys."""

_NAME = (
    r"(?:[\w.-]*[_.-])?(?:(?:api|access|auth|secret|private)[_-]?key|secret|password|passwd|pwd"
    r"|credentials?|authorization|cookie|signature"
    r"|(?:access|api|auth|bearer|hf|id|refresh|session)[_-]?token)"
)
_IS_SECRET = re.compile(rf"{_NAME}|token", re.I)
_IS_SECRET_VARIABLE = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)")
_ARE_HEADERS = re.compile(r"(?:\w+_)?headers", re.I)
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
    return text


def without_secrets(tree: Any) -> Any:
    """Settings with secrets masked: {"api_key": "abc"} is {"api_key": "***"}.

    Headers are masked whole: services have names of their own for the one that holds a key.
    """
    if isinstance(tree, Mapping):
        return {name: _setting(str(name), value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(value) for value in tree]
    return masked(tree) if isinstance(tree, str) else tree


def _setting(name: str, value: Any) -> Any:
    if isinstance(value, str) and value and _IS_SECRET.fullmatch(name):
        return MASK
    if isinstance(value, Mapping) and _ARE_HEADERS.fullmatch(name):
        return dict.fromkeys(value, MASK)
    return without_secrets(value)
