"""Use SQLite files that several processes open. Must not know: what is in them."""

from __future__ import annotations

import sqlite3
import time

_PAUSE_S = 0.01


def write_ahead(db: sqlite3.Connection, timeout_s: float) -> None:
    """Use a write-ahead log.

    While another process reads or creates a new file, SQLite refuses the switch without waiting
    (https://sqlite.org/c3ref/busy_handler.html): two that wait for each other would wait for ever.

    Raises:
        sqlite3.OperationalError: the file is in use for so many seconds, or can't be written.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def roll_back(db: sqlite3.Connection) -> None:
    """End a transaction that failed. SQLite has ended it already if the disk is full, for example.

    A second end would be an error that hides the first.
    """
    if db.in_transaction:
        db.execute("ROLLBACK")
