"""The keys that a topic has at present, to find those that a table does not have any more.

It is a temporary SQLite file, so that its size is not limited by memory. Must not know: a source.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path


class KeySet:
    """A set of keys on disk. ``close`` deletes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidemill-keys-")
        self._db = sqlite3.connect(Path(self._folder.name) / "keys", isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE keys (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def load(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add the keys of records, and remove those of tombstones, in order."""
        self._db.execute("BEGIN")
        for key, value in records:
            if value is None:
                self._db.execute("DELETE FROM keys WHERE key = ?", (key,))
            else:
                self._db.execute("INSERT OR IGNORE INTO keys VALUES (?)", (key,))
        self._db.execute("COMMIT")

    def discard(self, keys: Iterable[bytes]) -> None:
        """Remove keys."""
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM keys WHERE key = ?", ((key,) for key in keys))
        self._db.execute("COMMIT")

    def __iter__(self) -> Iterator[bytes]:
        for (key,) in self._db.execute("SELECT key FROM keys ORDER BY key"):
            yield key

    def close(self) -> None:
        """Delete the file."""
        self._db.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()
