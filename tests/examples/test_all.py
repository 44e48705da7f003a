"""Each example can be found, has a page, and uses what users can use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, program

ROOT = EXAMPLES.parent
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if (path / f"{path.name}.py").exists())
APPLICATIONS = [
    name for name in ("dashboard", "fraud", "monitoring", "personalisation") if name in NAMES
]
"""They have a picture in the index. The other examples show one thing each."""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of tidemill that a file imports, with each name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_the_index_has_each_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"make example NAME=(\w+)", page)) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_a_readme_that_says_how_to_run_it(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text()
    assert f"examples/{name}/{name}.py" in readme or f"NAME={name}" in readme


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_has_a_picture_in_the_index(name: str) -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    section = (
        page[: page.index(f"NAME={name}")].rpartition("\n## ")[2]
        + page[page.index(f"NAME={name}") :].partition("\n## ")[0]
    )
    pictures = re.findall(r"!\[[^\]]+\]\((images/[^)]+)\)", section)
    assert pictures
    assert all((ROOT / "docs" / picture).stat().st_size < 400_000 for picture in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_imports_only_what_the_documentation_names(name: str) -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    internal = {"architecture.md", "PATTERNS.md", "STYLE.md", "testing.md"}
    documented = " ".join(page.read_text() for page in pages if page.name not in internal)
    for path in program(name).parent.rglob("*.py"):
        for module, attribute in imported(path):
            if module.split(".")[0] == "tidemill":
                assert module in documented, f"{path.name} imports {module}"
                assert not attribute.startswith("_"), f"{path.name} imports {attribute}"
