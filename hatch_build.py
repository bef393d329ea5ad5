"""What hatchling asks when it builds the package: the links that PyPI shows beside it.

The environment variable GROUPWISE_REPOSITORY holds the address of the repository that the package
is published from; the release workflow sets it. Without it there are no links. A wheel that is
built from a source distribution has the links of that one.
"""

import os
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "GROUPWISE_REPOSITORY"


class ProjectLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = links(os.environ.get(VARIABLE, ""))


def links(repository: str) -> dict[str, str]:
    """links("https://host/me/it")["Issues"] == "https://host/me/it/issues"; of "": none."""
    address = repository.strip().rstrip("/")
    if not address:
        return {}
    if not re.fullmatch(r"https?://[^\s/]+/\S+", address):
        raise ValueError(f"{VARIABLE} must be like https://HOST/OWNER/NAME, not {repository!r}")
    return {
        "Homepage": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Source": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
    }
