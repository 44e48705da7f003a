"""Read tables beside the stream: the queue of snapshots, one chunk at a time.

A table that is read again after a gap (``resync``) ends with deletes of the keys that its topic has
and the table lacks. It begins when the stream has delivered all that was committed when the gap was
known: changes from before an ALTER TABLE, or of a table that was dropped and created again, must
not replace rows that were read. The source of the watermark method
is DBLog (Andreakis and Papapanagiotou, 2020). Must not know: a particular database.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from tidemill.connect.cdc.contract import Batch, Change, Chunk, Position, Row, Source, Table
from tidemill.connect.cdc.packed import PackedRows
from tidemill.connect.cdc.state import TableProgress, WorkerState
from tidemill.connect.cdc.writer import Writer

FIRST_ROWS = 200
GROWTH = 4
TARGET_BYTES = 16 << 20
SAMPLE_ROWS = 100
"""Rows of a chunk whose values are measured."""


class ChunkSize:
    """The size of the chunks of one table: few rows at first, then as many as fit a bound of bytes.

    A chunk is held in memory as a whole, and the stream waits while it is read.

    Attributes:
        rows: how many rows to ask for next.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self.rows = min(FIRST_ROWS, most_rows)

    def adapt(self, rows: Sequence[Row]) -> None:
        """Choose the next size from the rows of a chunk."""
        if not rows:
            return
        if isinstance(rows, PackedRows):
            size = rows.row_bytes + 1
        else:
            sample = rows[:: max(1, len(rows) // SAMPLE_ROWS)]
            size = sum(_bytes(row) for row in sample) // len(sample) + 1
        fitting = max(1, TARGET_BYTES // size)
        self.rows = min(self._most_rows, self.rows * GROWTH, fitting)


def _bytes(row: Row) -> int:
    """Return about how much memory the values of a row take."""
    return sum(len(each) if isinstance(each, str) else 8 for each in row.values())


class KeySet:
    """A set of keys in a temporary SQLite file: memory does not limit it. ``close`` deletes it."""

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


KeyOf = Callable[[Table, Row], bytes]


class Window:
    """A chunk that waits until the stream has reached its high position (the watermark method).

    The rows of a chunk are at least as new as the stream was when the chunk was read, and at most
    as new as its ``high`` position. Every key that the stream changes between these two is dropped
    from the chunk, because the stream's change is as new or newer.

    Args:
        key_of: returns the key of a row as it is in the topic.
    """

    def __init__(self, table: Table, chunk: Chunk, key_of: KeyOf) -> None:
        self.table = table
        self.chunk = chunk
        self._key_of = key_of
        self._rows: dict[bytes, Row] | None = None  # until the stream changes the table
        self._newest: dict[bytes, Row] = {}

    def see(self, change: Change) -> None:
        """Take note of a change of the stream before it is written.

        Values that the source could not find out are taken from the chunk, which might hold the
        only copy (PostgreSQL's TOAST).
        """
        if change.table is None or change.table.id != self.table.id:
            return
        if self._rows is None:
            self._rows = {self._key_of(self.table, row): row for row in self.chunk.rows}
        for row in (change.before, change.after):
            if row is None or not all(name in row for name in self.table.key):
                continue
            key = self._key_of(self.table, row)
            known = self._rows.pop(key, None) or self._newest.get(key)
            if known is not None and row is change.after:
                for name, value in known.items():
                    row.setdefault(name, value)
                self._newest[key] = row

    def rest(self) -> Sequence[Row]:
        """Return the rows to write, in the order of the chunk."""
        return self.chunk.rows if self._rows is None else list(self._rows.values())


log = structlog.get_logger("tidemill.cdc")

ReadTopic = Callable[[str], Iterable[tuple[bytes, bytes | None]]]


class Snapshots:
    """Drives the snapshots of one source.

    Args:
        state: has the queue. It is stored with each commit.
        read_topic: reads a topic to its end, for the keys that it has.
        chunk_rows: the largest number of rows of a chunk.
    """

    def __init__(
        self,
        source: Source,
        writer: Writer,
        state: WorkerState,
        read_topic: ReadTopic,
        chunk_rows: int,
    ) -> None:
        self._source = source
        self._writer = writer
        self._state = state
        self._read_topic = read_topic
        self._chunk_rows = chunk_rows
        self._size = ChunkSize(chunk_rows)
        self._sized = ""
        self._tables: dict[str, Table] = {}
        self._read: Table | None = None  # the table of the last chunk
        self._window: Window | None = None
        self._keys: KeySet | None = None
        self._begin: Position | None = None  # a table is read again when the stream has come here
        for progress in state.snapshots:
            if progress.resync:  # which keys were seen is not stored
                progress.after, progress.rows = None, 0

    @property
    def active(self) -> bool:
        """Whether there is a table to read."""
        return bool(self._state.snapshots)

    def know(self, tables: Iterable[Table]) -> None:
        """Take note of tables and of their present columns."""
        for table in tables:
            self._tables[table.id] = table

    def request(self, table: str, *, resync: bool = False, why: str = "") -> None:
        """Put a table into the queue. If it is being read, it starts again."""
        if self._window is not None and self._window.table.id == table:
            self._window = None
        if self._state.snapshots and self._state.snapshots[0].table == table:
            self._forget_keys()
        self._state.request(table, resync=resync, why=why)
        log.info("snapshot.requested", table=table, why=why, resync=resync)

    def see(self, batch: Batch) -> None:
        """Take note of a batch of the stream before it is written."""
        if self._window is not None:
            for change in batch.changes:
                self._window.see(change)
        if self._keys is not None and self._state.snapshots:
            self._see_keys(self._keys, self._state.snapshots[0].table, batch.changes)
        self.know(batch.schemas)
        for table in batch.resync:
            self.request(table, resync=True, why=batch.reasons.get(table, "it was changed"))

    def step(self) -> bool:
        """Do the next step that is possible now, and return whether there was one.

        Rows are added to the open transaction, with the progress in the state.
        """
        if not self._state.snapshots:
            return False
        progress = self._state.snapshots[0]
        if self._window is None and self._has_reached(self._begin):
            table = self._present(progress.table)
            if table is None or not table.key:  # dropped, or read as a whole at the start only
                log.warning(
                    "snapshot.skipped",
                    table=progress.table,
                    why="the table is gone" if table is None else "it has no primary key",
                )
                self._end(progress)
                return True
            if progress.resync and self._begin is None:  # of this chunk only the place counts
                self._begin = self._source.read_chunk(table, None, 1).high
            if self._has_reached(self._begin):
                self._open(progress, table)
        window = self._window
        if window is None or not self._has_reached(window.chunk.high):
            return False
        self._close(progress, window)
        return True

    def close(self) -> None:
        """Delete temporary files."""
        self._forget_keys()

    def _present(self, table: str) -> Table | None:
        """Return a table as it is now; None if it is gone.

        The stream can be behind. Then the table of its last change lacks new columns, and possibly
        nothing in the stream will ever describe them. Chunks share one object until the table is
        changed, because encoders are cached for each object.
        """
        known = self._tables.get(table)
        found = None if known is None else self._source.find_table(known.schema, known.name)
        if found is None or not found.looks_like(self._read):
            self._read = found
        return self._read

    def _has_reached(self, goal: Position | None) -> bool:
        """Return whether the stream is at or after a place. None is before every place."""
        position = self._state.position
        return goal is None or (position is not None and self._source.reached(position, goal))

    def _open(self, progress: TableProgress, table: Table) -> None:
        if progress.resync and self._keys is None:
            # What is written from now on is seen; what was written before must be visible.
            self._writer.commit()
            self._keys = KeySet()
            self._keys.load(self._read_topic(self._writer.topic(table)))
        key = list(table.key)
        if progress.after is not None and progress.key not in (None, key):
            progress.after, progress.rows = None, 0  # another key, another order of the rows
        progress.key = key
        if progress.after is None:
            progress.estimate = self._source.estimate(table)
        if self._sized != table.id:
            self._size, self._sized = ChunkSize(self._chunk_rows), table.id
        chunk = self._source.read_chunk(table, progress.after, self._size.rows)
        self._size.adapt(chunk.rows)
        self._window = Window(table, chunk, self._writer.key_of)
        if self._keys is not None:
            # A row that the rules leave out now can be there from before they were changed.
            writer = self._writer
            kept = (row for row in chunk.rows if writer.selects(table, row))
            self._keys.discard(writer.key_of(table, row) for row in kept)

    def _close(self, progress: TableProgress, window: Window) -> None:
        self._window = None
        self._writer.write_rows(window.table, window.rest(), window.chunk)
        progress.rows += len(window.chunk.rows)
        progress.after = window.chunk.last_key
        self._state.snapshot_rows += len(window.chunk.rows)
        if window.chunk.last_key is None:
            deleted = 0
            for key in self._keys or ():
                self._writer.delete_key(window.table, key, json.loads(key))
                deleted += 1
            log.info(
                "snapshot.done", table=progress.table, rows=progress.rows, deleted_keys=deleted
            )
            self._end(progress)

    def _end(self, progress: TableProgress) -> None:
        self._state.snapshots.remove(progress)
        self._forget_keys()

    def _see_keys(self, keys: KeySet, name: str, changes: Iterable[Change]) -> None:
        """Keep the keys that the stream writes."""
        writer = self._writer
        keys.discard(
            writer.key_of(change.table, row)
            for change in changes
            if change.table is not None and change.table.id == name
            for row in (change.before, change.after)
            if row is not None and all(key in row for key in change.table.key)
            # A new row that the rules leave out is not written: its key is deleted at the end.
            if row is change.before or writer.selects(change.table, row)
        )

    def _forget_keys(self) -> None:
        self._begin = None
        if self._keys is not None:
            self._keys.close()
            self._keys = None
