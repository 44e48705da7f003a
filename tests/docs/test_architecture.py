"""The files and folders that ``docs/architecture.md`` names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidemill"
PAGES = [ROOT / "docs" / name for name in ("architecture.md", "PATTERNS.md", "extending.md")]
BASES = (SOURCE, SOURCE / "spark", SOURCE / "protocols" / "kafka", ROOT)
"""Paths in the pages are relative to one of these folders."""


def named_paths(page: Path) -> set[str]:
    """Return the paths of modules and rooms that a page names."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`([\w./]+)`", text)
    rooms = {each.name for each in SOURCE.iterdir() if each.is_dir()}
    return {
        each
        for each in quoted
        if "/" in each and (each.endswith(".py") or each.split("/")[0] in rooms)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    paths = named_paths(page)
    assert paths
    missing = {
        path
        for path in paths
        if not any((base / path).exists() or (base / f"{path}.py").exists() for base in BASES)
    }
    assert missing == set()


def test_every_room_is_introduced() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [
        each
        for floor in ("log", "state", "engine", "spark")
        for each in (SOURCE / floor).iterdir()
        if each.is_dir() and (each / "__init__.py").exists()
    ]
    missing = [room for room in rooms if f"`{room.relative_to(SOURCE)}`" not in text]
    assert missing == []
