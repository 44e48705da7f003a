"""New files in a pool of handles."""

from __future__ import annotations

from tidemill.log.disk.log_file import HandlePool, LogFile


def new_file(pool: HandlePool, name: str) -> LogFile:
    """Create an empty file in the folder ``/d``."""
    file = LogFile(pool, f"/d/{name}", 0, creating=True)
    file.create()
    return file
