"""Read tables beside the stream: the queue of snapshots, one chunk at a time.

A table that is read again after a gap (``resync``) ends with deletes of the keys that its topic has
and the table lacks. It begins when the stream has delivered all that was committed when the gap was
known: changes from before an ALTER TABLE, or of a table that was dropped and created again, must
not replace rows that were read. Must not know: a particular database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import structlog

from tidemill.connect.cdc.contract import Batch, Change, Position, Source, Table
from tidemill.connect.cdc.snapshot.chunk_size import ChunkSize
from tidemill.connect.cdc.snapshot.keyset import KeySet
from tidemill.connect.cdc.snapshot.window import Window
from tidemill.connect.cdc.state import TableProgress, WorkerState
from tidemill.connect.cdc.writing.writer import Writer

log = structlog.get_logger("tidemill.cdc")

ReadTopic = Callable[[str], Iterable[tuple[bytes, bytes | None]]]


class Snapshots:
    """Drives the snapshots of one source.

    Args:
        source: the database.
        writer: writes the rows.
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

    def request(self, table: str, *, resync: bool = False) -> None:
        """Put a table into the queue. If it is being read, it starts again."""
        if self._window is not None and self._window.table.id == table:
            self._window = None
        if self._state.snapshots and self._state.snapshots[0].table == table:
            self._forget_keys()
        self._state.request(table, resync=resync)

    def see(self, batch: Batch) -> None:
        """Take note of a batch of the stream before it is written."""
        if self._window is not None:
            for change in batch.changes:
                self._window.see(change)
        if self._keys is not None and self._state.snapshots:
            self._see_keys(self._keys, self._state.snapshots[0].table, batch.changes)
        self.know(batch.schemas)
        for table in batch.resync:
            self.request(table, resync=True)

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
            self._keys.discard(self._writer.key_of(table, row) for row in chunk.rows)

    def _close(self, progress: TableProgress, window: Window) -> None:
        self._window = None
        self._writer.write_rows(window.table, window.rest(), window.chunk)
        progress.rows += len(window.chunk.rows)
        progress.after = window.chunk.last_key
        self._state.snapshot_rows += len(window.chunk.rows)
        if window.chunk.last_key is None:
            for key in self._keys or ():
                self._writer.delete_key(window.table, key, json.loads(key))
            self._end(progress)

    def _end(self, progress: TableProgress) -> None:
        self._state.snapshots.remove(progress)
        self._forget_keys()

    def _see_keys(self, keys: KeySet, name: str, changes: Iterable[Change]) -> None:
        """Keep the keys that the stream writes."""
        keys.discard(
            self._writer.key_of(change.table, row)
            for change in changes
            if change.table is not None and change.table.id == name
            for row in (change.before, change.after)
            if row is not None and all(key in row for key in change.table.key)
        )

    def _forget_keys(self) -> None:
        self._begin = None
        if self._keys is not None:
            self._keys.close()
            self._keys = None
