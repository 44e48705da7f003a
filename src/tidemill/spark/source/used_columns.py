"""Tells the tasks of a query which columns of a stream it uses.

The query's plan is known only after its sources are loaded, so a file says it later. Must not know:
Spark, plans, how values are parsed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path


def read(path: str) -> frozenset[str] | None:
    """Return the columns that have values; None if all have.

    Args:
        path: The file. If it is missing or damaged, all columns have values.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
    return frozenset(map(str, found)) if isinstance(found, list) else None


class UsedColumns:
    """The file about one stream. It is deleted with this object.

    Raises:
        OSError: There is no folder for temporary files.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="tidemill-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "columns")

    def write(self, names: Iterable[str]) -> None:
        """Say which columns have values, before the first task runs."""
        new = Path(f"{self.path}.new")
        new.write_text(json.dumps(sorted(names)))
        new.replace(self.path)
