"""A source with a binary log: the contract of change capture.

Must not know Kafka, the worker, or which kind of server it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import (
    CatalogTable,
    character_sets,
    query,
    quoted,
    read_tables,
)
from tidemill.connect.cdc.binlog.dialect import Dialect, LogPosition
from tidemill.connect.cdc.binlog.dump import BinlogStream
from tidemill.connect.cdc.binlog.groups import MOST_HELD, Groups
from tidemill.connect.cdc.binlog.known import KnownTables
from tidemill.connect.cdc.binlog.reading import RowReader, reader_of
from tidemill.connect.cdc.binlog.settings import Settings, connection_error, take_any_text
from tidemill.connect.cdc.binlog.shapes import Shapes
from tidemill.connect.cdc.contract import (
    NO_KEY,
    Batch,
    Capture,
    Chunk,
    ConsistentRead,
    Finding,
    Lag,
    Position,
    Row,
    Table,
)
from tidemill.connect.cdc.errors import SetupError, SourceUnavailableError
from tidemill.connect.cdc.packed import Changes

_UNREADABLE = (1049, 1146, 1814)
"""The database or the table is gone; its tablespace was discarded."""


class BinlogSource:
    """Captures tables of a server with a binary log. One thread uses it.

    Raises:
        DefinitionError: the ``[database]`` section is invalid.
    """

    def __init__(self, capture: Capture, dialect: Dialect[Any]) -> None:
        self._capture = capture
        self._dialect = dialect
        self._settings = Settings.parse(capture.database, capture.name, dialect.name)
        self._queries: pymysql.Connection[Any] | None = None
        self._stream: BinlogStream | None = None
        self._groups: Groups | None = None
        self._known = KnownTables(capture.notes, self._find_captured)
        self._returned: LogPosition | None = None
        self._confirmed: LogPosition | None = None
        self._behind_since_ms: int | None = None
        self._has_any_text = False

    # --- description -----------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Find what the server lacks; see ``Source.check``."""
        with self._typed_errors():
            return self._dialect.check(self._connection(), self._capture)

    def tables(self) -> list[Table]:
        """Return the captured tables as they are now."""
        return [each.table() for each in self._captured()]

    def _captured(self) -> list[CatalogTable]:
        with self._typed_errors():
            found = read_tables(self._connection())
        return [each for each in found if self._is_captured(each)]

    def left_out(self) -> Mapping[str, str]:
        """Return the tables without a key; see ``Source.left_out``."""
        with self._typed_errors():
            found = read_tables(self._connection())
        selected = (each for each in found if self._capture.selects(each.database, each.name))
        return {
            f"{each.database}.{each.name}": NO_KEY
            for each in selected
            if not self._is_captured(each)
        }

    def find_table(self, schema: str, name: str) -> Table | None:
        """Return a captured table as it is now; see ``Source.find_table``.

        Raises:
            SetupError: the user must not read it. Then the catalog does not show it either.
        """
        if not self._capture.selects(schema, name):
            return None
        found = self._find_captured(schema, name)
        is_readable = self._is_readable(schema, name)
        return found.table() if found is not None and is_readable else None

    def _is_readable(self, database: str, name: str) -> bool:
        """Return whether a table has rows to read: not after DISCARD TABLESPACE, until IMPORT."""
        with self._typed_errors():
            try:
                query(
                    self._connection(), f"SELECT 1 FROM {quoted(database)}.{quoted(name)} LIMIT 1"
                )
            except pymysql.err.MySQLError as error:
                if error.args and error.args[0] in _UNREADABLE:
                    return False
                raise
        return True

    def _find_captured(self, schema: str, name: str) -> CatalogTable | None:
        if not self._capture.selects(schema, name):
            return None
        found = self._find(schema, name)
        return None if found is None or not self._is_captured(found) else found

    def estimate(self, table: Table) -> int:
        """Return about how many rows a table has: the storage engine's estimate."""
        found = self._find(table.schema, table.name)
        return 0 if found is None else found.rows

    # --- the stream ------------------------------------------------------------------------------

    def start(self, position: Position | None) -> Position:
        """Go to a position; see ``Source.start``."""
        self._stop_stream()
        with self._typed_errors():
            connection = self._connection()
            self._check_settings(connection, is_first=position is None)
            if position is None:
                at = self._dialect.present(connection)
            else:
                at = self._dialect.resume(connection, self._dialect.parse(position))
            names = character_sets(connection, self._dialect.collations)
            shapes = Shapes(self._capture, names, self._find, self._known, self._dialect.map_rules)
            self._stream = BinlogStream(
                self._connect,
                lambda opened: self._dialect.request(opened, at, self._settings.server_id),
            )
        self._known.begin(self._captured(), is_new=position is None)
        self._groups = Groups(
            at, shapes, self._known, self.find_table, self._names, self._keeps_rollback
        )
        self._returned = self._confirmed = at
        stored: Position = at.stored()
        return stored

    def _check_settings(self, connection: pymysql.Connection[Any], *, is_first: bool) -> None:
        capture = self._capture
        if not is_first and capture.keyless == "refuse":
            # A table that was created later is left out; it must not stop the others.
            capture = replace(capture, keyless="skip")
        errors = [
            each for each in self._dialect.check(connection, capture) if each.severity == "error"
        ]
        if errors:
            raise SetupError(
                "the server is not ready for change capture: "
                + "; ".join(each.text for each in errors),
                hint="Run: " + "; ".join(each.fix for each in errors if each.fix),
            )

    def poll(self, timeout_s: float) -> Batch | None:
        """Return the next changes; see ``Source.poll``."""
        if self._stream is None or self._groups is None:
            raise SourceUnavailableError("the stream of the binary log is not open")
        deadline = time.monotonic() + timeout_s
        stream, groups = self._stream, self._groups
        with self._typed_errors():
            while True:
                if groups.is_between_groups:
                    has_moved = groups.held > 0 or groups.position != self._returned
                    has_moved = has_moved or groups.has_news
                    wait_s = 0.0 if has_moved else max(0.0, deadline - time.monotonic())
                    if not stream.wait(wait_s):
                        break
                stream.fill()
                stream.place = groups.skim(
                    stream.received, stream.place, checksums=stream.has_checksums
                )
                if stream.place < len(stream.received):
                    groups.add(stream.read())
                if groups.held >= MOST_HELD and (batch := groups.take()) is not None:
                    return self._deliver(batch)
                if groups.is_between_groups and time.monotonic() >= deadline:
                    break
        has_something = groups.held or groups.has_news or groups.has_notes
        if not has_something and groups.position == self._returned:
            return None
        batch = groups.take()
        return None if batch is None else self._deliver(batch)

    def _deliver(self, batch: Batch) -> Batch:
        self._returned = self._dialect.parse(batch.position)
        if isinstance(batch.changes, Changes) and batch.changes:
            self._behind_since_ms = self._behind_since_ms or batch.changes.ts_ms
        return batch

    def confirm(self, position: Position) -> None:
        """Take note of a confirmed position. The server removes its files by its own rules."""
        self._confirmed = self._dialect.parse(position)
        if self._confirmed == self._returned:
            self._behind_since_ms = None

    def reached(self, position: Position, goal: Position) -> bool:
        """Return whether ``position`` is at or after ``goal``."""
        return bool(self._dialect.parse(position).reached(self._dialect.parse(goal)))

    def lag(self) -> Lag:
        """Return how far the confirmed position is behind, by the time of its changes."""
        if self._behind_since_ms is None:
            return Lag(ms=0)
        return Lag(ms=max(0, time.time_ns() // 1_000_000 - self._behind_since_ms))

    # --- snapshots -------------------------------------------------------------------------------

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        """Return rows in the order of the key; see ``Source.read_chunk``."""
        try:
            return self._read_chunk(table, after, limit)
        except UnicodeDecodeError:
            # Halves of surrogate pairs are stored as text. They are rare, so others are not slower.
            self._has_any_text, self._queries = True, None
            return self._read_chunk(table, after, limit)

    def _read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        reader = self._reader(table)
        with self._typed_errors():
            connection = self._connection()
            delivered = None if self._groups is None else self._groups.delivered
            with self._dialect.snapshot(connection, delivered) as at:
                now_ms = time.time_ns() // 1_000_000
                rows, last = reader.chunk(connection, after, limit)
                return Chunk(rows, last, at.stored(), now_ms)

    @contextmanager
    def read_consistent(self, tables: Sequence[Table]) -> Iterator[ConsistentRead]:
        """Read tables as of one position; see ``Source.read_consistent``."""
        readers = [(table, self._reader(table)) for table in tables]
        connection = self._connect()
        take_any_text(connection)
        try:
            with self._typed_errors(), self._dialect.exact_snapshot(connection) as at:
                self.start(at.stored())
                now_ms = time.time_ns() // 1_000_000
                yield ConsistentRead(at.stored(), _parts(connection, readers), now_ms)
        finally:
            connection.close()

    def _reader(self, table: Table) -> RowReader:
        found = self._find(table.schema, table.name)
        return reader_of(found, table)

    # --- the end ---------------------------------------------------------------------------------

    def drop(self) -> None:
        """Do nothing: ``start`` creates nothing on the server."""

    def close(self) -> None:
        """Close the connections."""
        self._stop_stream()
        if self._queries is not None:
            with suppress(pymysql.err.MySQLError, OSError):
                self._queries.close()
            self._queries = None

    def _stop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # --- inside ----------------------------------------------------------------------------------

    def _connect(self, read_timeout: int | None = None) -> pymysql.Connection[Any]:
        connection = self._settings.connect(read_timeout)
        self._dialect.prepare(connection)
        if self._has_any_text:
            take_any_text(connection)
        return connection

    def _connection(self) -> pymysql.Connection[Any]:
        if self._queries is not None:
            try:
                self._queries.ping(reconnect=False)
            except (pymysql.err.MySQLError, OSError):
                self._queries = None
        if self._queries is None:
            self._queries = self._connect()
        return self._queries

    def _is_captured(self, table: CatalogTable) -> bool:
        has_key = bool(table.key) or self._capture.keyless == "all-columns"
        return has_key and self._capture.selects(table.database, table.name)

    def _find(self, database: str, name: str) -> CatalogTable | None:
        with self._typed_errors():
            found = read_tables(self._connection(), (database, name))
        return found[0] if found else None

    def _names(self) -> list[str]:
        return [table.name for table in self.tables()]

    def _keeps_rollback(self, table: Table) -> bool:
        found = self._find(table.schema, table.name)
        return found is not None and found.engine.lower() != "innodb"

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            raise connection_error(error, self._settings) from error
        except OSError as error:
            raise SourceUnavailableError(
                f"the connection to the database failed: {error}"
            ) from error


def _parts(
    connection: pymysql.Connection[Any], readers: Sequence[tuple[Table, RowReader]]
) -> Iterator[tuple[Table, list[Row]]]:
    for table, reader in readers:
        for rows in reader.all(connection):
            yield table, rows
