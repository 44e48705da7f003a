"""Projections in a DuckDB file. Knows no event.

DuckDB lets one process write a file, and others open it only when that one has closed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.extras import require_extra


class DuckDB:
    """A DuckDB file (``Database``), or one in memory without a path.

    Args:
        path: the file.
        connection: a connection of the process that has the file open already.
    """

    def __init__(self, path: Path | str = ":memory:", *, connection: Any = None) -> None:
        require_extra("duckdb")
        import duckdb

        self._db = connection.cursor() if connection is not None else duckdb.connect(str(path))

    @contextmanager
    def transaction(self) -> Iterator[DuckDB]:
        """Run a transaction. If another one has changed the same rows, it fails as a whole."""
        self._db.execute("BEGIN")
        try:
            yield self
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        import duckdb

        try:
            self._db.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # the commit failed, which has ended the transaction

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        found: list[tuple[Any, ...]] = self._db.execute(sql, list(values)).fetchall()
        return found

    def lock(self, projection: str) -> None:
        """Do nothing: of two transactions that move a projection, DuckDB refuses the second."""

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
