"""Make the README of the built package: links that lead to a file of the checkout become absolute.

The page of a package on an index has no files beside it, so a relative link would lead nowhere. The
build (hatchling) runs this hook; the README of the checkout stays as it is.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # the tests use the functions only
    MetadataHookInterface = object

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def absolute_links(text: str, base: str) -> str:
    """Return a Markdown text whose relative links begin with an address. Code stays as it is.

    Args:
        text: the Markdown.
        base: the address of the folder to which the links are relative, without a slash at its end.
    """
    parts = _CODE.split(text)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda link: f"{base}/{link[1]}", part)
        for part in parts
    )


def package_readme(root: Path) -> str:
    """Return the README with links into the repository, at the tag of this version."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    base = f"{project['urls']['Repository']}/blob/v{project['version']}"
    return absolute_links((root / "README.md").read_text(), base)


class PackageReadme(MetadataHookInterface):
    """The hook that hatchling runs to complete the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README."""
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": package_readme(Path(self.root)),
        }
