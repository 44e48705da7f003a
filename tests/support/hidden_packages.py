"""Runs Python as if some packages were not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support import environment

_HOOK = """
import sys

HIDDEN = {hidden!r}


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None


sys.meta_path.insert(0, Hide())
"""


def python_without(
    hidden: Iterable[str], program: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a new Python process that does not find the hidden modules.

    Args:
        hidden: names of modules at the top level.
        program: the text of the program.
        arguments: its command line.
        cwd: the folder in which it runs.
    """
    hook = _HOOK.format(hidden=sorted(hidden))
    kept = environment.without_settings()
    return subprocess.run(
        [sys.executable, "-c", f"{hook}\n{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env=kept | {"NO_COLOR": "1"},
    )


def tidemill_without(
    hidden: Iterable[str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command ``tidemill`` in a process that does not find the hidden modules."""
    program = "from tidemill.cli.main import main\nsys.argv[0] = 'tidemill'\nmain()"
    return python_without(hidden, program, *arguments, cwd=cwd)
