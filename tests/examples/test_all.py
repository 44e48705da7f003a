"""Each example can be found, has a page, and uses what users can use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.examples.running import EXAMPLES, program
from tests.support import environment
from tests.support.processes import poll_until

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


FLAGS = {"personalisation/personalisation": ("--generated", "1")}
PROCESSES = {
    "backpressure/backpressure": 1,
    "bank/bank": 1,
    "cart/cart": 1,
    "dashboard/dashboard": 3,
    "direct/direct": 2,
    "direct/zeromq": 2,
    "fraud/fraud": 2,
    "monitoring/monitoring": 4,
    "personalisation/personalisation": 2,
    "webhooks/webhooks": 3,
}
"""How many processes a program starts, at least, soon after its own start."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROCESSES)
def test_a_program_that_is_terminated_leaves_no_process(name: str, tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *FLAGS.get(name, ())],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment.without_settings(),
    )
    seen: set[psutil.Process] = set()

    def has_all() -> bool:
        seen.update(psutil.Process(started.pid).children(recursive=True))
        # A signal amid Popen would lose the child that is just being made.
        settled = time.time() - 0.3
        old = [each for each in seen if each.is_running() and each.create_time() < settled]
        return len(old) >= PROCESSES[name]

    try:
        poll_until(has_all, 60, "its processes run")
    finally:
        started.terminate()
        assert started.wait(60) == 143
    assert psutil.wait_procs(seen, 30)[1] == []


def test_each_program_with_processes_is_known() -> None:
    starting = re.compile(r"Popen\(|Broker\(")
    found = {
        f"{path.parent.name}/{path.stem}"
        for path in EXAMPLES.glob("*/*.py")
        if starting.search(path.read_text()) or "run_broker(" in path.read_text()
    }
    assert found == PROCESSES.keys()
