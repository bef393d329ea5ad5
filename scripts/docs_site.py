"""What mkdocs does for us when it builds docs/ (a hook, named in mkdocs.yml).

Pages link to source files outside docs/, which works in a view of the repository. The site has no
such files: there a link leads to `repo_url`; without it, only its text is kept.
"""

import pathlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Mapping[str, Any], **_: Any) -> str:
    """Called by mkdocs with the text of each page before it is rendered."""
    return without_outside_links(markdown, page.file.src_uri, config["repo_url"])


def without_outside_links(markdown: str, page: str, repository: str | None) -> str:
    """The page docs/`page`, its links to existing files outside docs/ replaced.

    without_outside_links("[loop](../groupwise/loop.py)", "tutorial.md", None) == "loop"
    """

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if path.startswith("docs/") or not (ROOT / path).exists():
            return link.group()  # mkdocs judges it
        return f"[{text}]({repository.rstrip('/')}/blob/main/{path})" if repository else text

    return LINK.sub(replaced, markdown)
