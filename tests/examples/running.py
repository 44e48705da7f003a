"""Runs the programs of ``examples/`` as a user does, and loads them as modules.

An example has one quick test at the level of its functions, and nightly tests of whole runs.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests.support import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def program(name: str) -> Path:
    """Return the program of an example."""
    return EXAMPLES / name / f"{name}.py"


def load(name: str, module: str | None = None) -> ModuleType:
    """Import a module of an example, by default its program, without running it."""
    path = EXAMPLES / name / f"{module or name}.py"
    known = f"examples_{name}_{path.stem}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = found = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))  # as if it were run
        try:
            spec.loader.exec_module(found)
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[known]


def run(
    name: str, *arguments: str, timeout_s: float = 600, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program of an example to its end, and return what it printed and its exit code."""
    return subprocess.run(
        [sys.executable, str(program(name)), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=folder,
        env=environment.without_settings(),
    )


def output_of(name: str, *arguments: str, timeout_s: float = 600) -> str:
    """Run the program of an example, which must succeed, and return what it prints."""
    done = run(name, *arguments, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
