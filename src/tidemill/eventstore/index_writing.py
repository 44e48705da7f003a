"""Appends folded records to an index, and what their commits change besides.

A new kind of change (a field of ``Commit``) is stored in ``IndexWriter._apply``. Must not know:
clients, the rules of the fold, who writes when.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from tidemill.eventstore.index import Indexed, IndexFile, indexed_of, mismatch, remember, unusable
from tidemill.eventstore.state import Step, category_of
from tidemill.eventstore.write_ahead import roll_back

_ROWS = (500, 50, 5, 1)
"""Rows that one statement inserts."""


class IndexWriter:
    """Appends folded records to an index. Its caller holds the lock of the index.

    Args:
        index: the index.
    """

    def __init__(self, index: IndexFile) -> None:
        self._index = index
        self._connection = index.connect()
        self._connection.execute("PRAGMA cache_size = -65536")
        self._connection.execute("PRAGMA wal_autocheckpoint = 4000")
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {}

    def write(self, steps: Sequence[Step]) -> Indexed:
        """Append records in one transaction. Those that the index has already are left out.

        Raises:
            IndexMismatchError: the index was written from another log.
            IndexUnusableError: the file can't be written.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._write(steps)
                self._connection.execute("COMMIT")
            except BaseException:
                roll_back(self._connection)
                self._names.clear()  # numbers that were given are not valid
                self._streams.clear()
                raise
            return indexed_of(self._connection)
        except sqlite3.Error as error:
            raise unusable(self._index.path, error) from error

    def _write(self, steps: Sequence[Step]) -> None:
        before = indexed_of(self._connection).head
        rows, tags = [], []
        for step in steps:
            if step.offset <= before.offset:
                if step.offset == before.offset and step.hash != before.hash:
                    raise mismatch(self._index.path, f"has another content at offset {step.offset}")
                continue
            for position, version, time_ms, event in step.events:
                stream, category = self._stream(event.stream)
                rows.append(
                    (
                        *(position, stream, version, self._name(event.type), category),
                        *(event.schema, time_ms, event.id, event.digest),
                        orjson.dumps(event.tags).decode() if event.tags else None,
                        *(event.data, event.metadata or None),
                    )
                )
                tags += [(self._name(tag), position) for tag in event.tags]
        self._insert("events", rows)
        self._insert("tags", tags)
        for step in steps:
            if step.commit is not None and step.offset > before.offset:
                self._apply(step)
        last = steps[-1]
        if last.offset > before.offset:
            fold = max(before.fold, *(step.commit.fold for step in steps if step.commit), 1)
            self._connection.execute(
                "UPDATE about SET position = ?, hash = ?, read = ?, digest = ?, fold = ?",
                (last.position, last.hash, last.offset, last.digest, fold),
            )

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, many with one statement.

        A statement runs without the interpreter's lock, and waits for it behind each row otherwise:
        up to 5 ms, while another thread folds.
        """
        start = 0
        for count in _ROWS:
            while len(rows) - start >= count:
                some = rows[start : start + count]
                one = f"({', '.join('?' * len(some[0]))})"
                self._connection.execute(
                    f"INSERT INTO {table} VALUES {', '.join([one] * count)}",
                    tuple(itertools.chain.from_iterable(some)),
                )
                start += count

    def _apply(self, step: Step) -> None:
        """Store what a commit changes besides its events."""
        assert step.commit is not None
        for name, below in step.commit.truncate:
            stream = self._stream(name)[0]
            self._connection.execute(
                "UPDATE events SET data = NULL, metadata = NULL WHERE stream = ? AND version < ? "
                "AND version >= (SELECT truncated FROM streams WHERE id = ?)",
                (stream, below, stream),
            )
            self._connection.execute(
                "UPDATE streams SET truncated = max(truncated, ?) WHERE id = ?", (below, stream)
            )
        for key in step.commit.forget:
            self._connection.execute(
                "INSERT OR IGNORE INTO forgotten VALUES (?, ?)", (key, step.offset)
            )

    def _name(self, name: str) -> int:
        """Return the number of a type, a tag or a category."""
        return self._names.get(name) or self._number("names", self._names, name)

    def _stream(self, name: str) -> tuple[int, int]:
        category = self._name(category_of(name) or "-")
        number = self._streams.get(name)
        return number or self._number("streams", self._streams, name, category), category

    def _number(self, table: str, known: dict[str, int], name: str, *more: int) -> int:
        row = self._connection.execute(f"SELECT id FROM {table} WHERE name = ?", (name,)).fetchone()
        if row is None:
            columns = "name, category" if more else "name"
            row = self._connection.execute(
                f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * (1 + len(more)))}) "
                "RETURNING id",
                (name, *more),
            ).fetchone()
        return remember(known, name, int(row[0]))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
