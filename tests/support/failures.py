"""A pytest plugin that writes each failure into a file at once, with all that pytest knows of it.

The variable TEST_FAILURES names the file; without it the plugin does nothing. ``.ci/run`` ends with
what is in the file, so that the last lines of its output say what failed. Knows nothing of the
tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "TEST_FAILURES"
MOST_LINES = 120
"""Of each failure, the last ones are written."""


class _Failures:
    """The hooks of the process that gets all reports."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sections = "\n".join(f"--- {name}\n{text}" for name, text in report.sections)
            self._write(f"{report.nodeid} ({report.when})", f"{sections}\n{report.longreprtext}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(f"{report.nodeid} (collection)", report.longreprtext)

    def _write(self, name: str, said: str) -> None:
        lines = said.strip().splitlines()[-MOST_LINES:]
        with self._path.open("a") as file:
            file.write("\n".join([f"FAILED {name}", *(f"    {line}" for line in lines), "\n"]))


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks, but not in the processes that only run tests."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(Path(path)), "failures")
