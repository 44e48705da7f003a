"""The environment of the programs that tests start.

Knows nothing of what the programs do.
"""

from __future__ import annotations

import os

PREFIX = "TIDEMILL_"
KEPT = "TIDEMILL_SPARK_ARCHIVE"
"""Names the archive of classes of the tests' JVMs (``tests/support/spark_archive.py``). A program
without it starts its JVM slowly, and makes an archive in the user's cache beside the tests."""


def without_settings() -> dict[str, str]:
    """Return the variables of this process without tidemill's settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or name == KEPT
    }
