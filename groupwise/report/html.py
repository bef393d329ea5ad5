"""Pages that are one file: no network, no script, dark and light, fit to be mailed.

Templates escape whatever a model or a dataset wrote: markup becomes text, and control characters
become visible escapes. The page's own policy (page.html) forbids scripts on top of that.
"""

import pathlib
from typing import Any

import jinja2
from markupsafe import Markup, escape

from groupwise.tracking.console import visible

PACKAGE = pathlib.Path(__file__).parent.parent


def page(template: str, **values: Any) -> str:
    """page("report/run.html", name="demo", ...)"""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PACKAGE),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"cut": cut, "number": number}
    return environment.get_template(template).render(values)


def shown(text: object, limit: int = 20_000) -> str:
    """Anyone's text as HTML that only ever shows it."""
    return str(escape(visible(cut(text, limit))))


def cut(text: object, limit: int = 20_000) -> str:
    """Very long texts are cut, and say so."""
    whole = str(text)
    rest = len(whole) - limit
    return f"{whole[:limit]}\n… {rest:,} more characters" if rest > 0 else whole


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
