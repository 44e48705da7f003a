"""Runs programs of the benchmarks in processes of their own; they print JSON.

A program of another checkout (``--against``) runs with its own code, of the benchmarks too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 7200.0


def environment_of(checkout: Path | None) -> dict[str, str]:
    """Return the variables with which a Python runs the code of a checkout; None for this one.

    Raises:
        SystemExit: It is not a checkout, or its extension is not built.
    """
    if checkout is None:
        return {}
    source = (checkout / "src").resolve()
    if not (source / "tidemill").is_dir():
        raise SystemExit(f"error: {checkout} is not a checkout: it has no folder src/tidemill")
    if not list((source / "tidemill").rglob("_native*.so")):
        raise SystemExit(
            f"error: the extension of {checkout} is not built\n"
            f"hint: run `python scripts/build_native.py` in {checkout}"
        )
    return {"PYTHONPATH": str(source)}


def start(
    module: str,
    *arguments: object,
    checkout: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a program, whose output can be read."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=checkout or ROOT,
        env={**os.environ, **environment_of(checkout), **(env or {})},
    )


def lines(module: str, *arguments: object, checkout: Path | None = None) -> Iterator[Any]:
    """Run a program, and yield what each line of its output says.

    Raises:
        RuntimeError: It failed; its error is on stderr.
    """
    process = start(module, *arguments, checkout=checkout)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        if code := process.wait(TIMEOUT_S):
            raise RuntimeError(f"{module} ended with {code}; its error is on stderr")
    finally:
        if process.poll() is None:
            process.terminate()  # it ends its JVM
            process.wait(60)


def result(
    module: str,
    *arguments: object,
    checkout: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Run a program, and return what its output says.

    Raises:
        RuntimeError: It failed; its error is on stderr.
        subprocess.TimeoutExpired: It did not end.
    """
    with start(module, *arguments, checkout=checkout, env=env) as process:
        return result_of(process, timeout_s)


def result_of(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> Any:
    """Wait for the end of a program, and return what its output says.

    Raises:
        RuntimeError: It failed; its error is on stderr.
        subprocess.TimeoutExpired: It did not end.
    """
    try:
        out, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"a program ended with {process.returncode}; its error is on stderr")
    return json.loads(out)
