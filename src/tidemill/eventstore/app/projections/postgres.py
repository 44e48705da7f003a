"""Projections in PostgreSQL, with psycopg. Knows no event."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidemill.extras import require_extra

# A question mark outside of 'texts' and "names", and each percent sign.
_MARKS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\?|%")


class PostgreSQL:
    """A database of PostgreSQL (``Database``).

    A ``?`` outside of quotes is a value; the operators of jsonb with that sign have functions
    (``jsonb_exists``).

    Args:
        dsn: the connection string of libpq. Set ``search_path`` in it for another schema.
    """

    def __init__(self, dsn: str) -> None:
        require_extra("postgres")
        import psycopg

        self._psycopg, self._dsn = psycopg, dsn
        self._db: Any = None

    @contextmanager
    def transaction(self) -> Iterator[PostgreSQL]:
        """Run a transaction. A lost connection is opened again for the next one."""
        if self._db is None or self._db.closed:
            self._db = self._psycopg.connect(self._dsn, autocommit=True)
        with self._db.transaction():
            yield self

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        done = self._db.execute(_psycopg(sql), tuple(values))
        return done.fetchall() if done.description is not None else []

    def lock(self, projection: str) -> None:
        """Take an advisory lock of the transaction."""
        self.run("SELECT pg_advisory_xact_lock(hashtext('tidemill'), hashtext(?))", (projection,))

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()


def _psycopg(sql: str) -> str:
    """Return a statement with psycopg's placeholders."""

    def mark(found: re.Match[str]) -> str:
        return "%s" if found[0] == "?" else found[0].replace("%", "%%")

    return _MARKS.sub(mark, sql)
