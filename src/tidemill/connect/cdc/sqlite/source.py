"""The SQLite source: the contract over the change log that triggers fill.

Guarantees: a transaction's changes are seen together and in order, also those of other processes.
A change of the schema is found when it is looked for, at each poll; until then the triggers of the
old shape stay. The table is then read again, so that the topic by key equals the table whatever
happened in between. Must not know: Kafka.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.connect.base.secrets import Secret
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
from tidemill.connect.cdc.errors import (
    DefinitionError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)
from tidemill.connect.cdc.packed import Changes, PackedRows
from tidemill.connect.cdc.sqlite import rows as cells
from tidemill.connect.cdc.sqlite.changelog import SHAPED, ChangeLog
from tidemill.connect.cdc.sqlite.check import findings
from tidemill.connect.cdc.sqlite.logged import LoggedChanges, decode, value_columns
from tidemill.connect.cdc.sqlite.schema import (
    SCHEMA,
    Shape,
    column_of,
    quoted,
    read_shape,
    table_names,
)
from tidemill.connect.cdc.sqlite.triggers import Names
from tidemill.native import extension

_BUSY_S = 5.0
_LOOK_S = 0.003
"""How long between two looks at ``PRAGMA data_version``, which costs a few microseconds."""
_BATCH = 5_000
_PURGE_EVERY_S = 0.5
_PURGE_ROWS = 5_000
_SAMPLE_ROWS = 100
_OPTIONS = {"path", "busy_timeout_s", "batch_rows", "trust_expression_indexes"}


class SqliteSource:
    """Captures a SQLite database.

    Args:
        capture: its ``database`` section has ``path``, and optionally ``busy_timeout_s`` (how long
            to wait for a lock, default 5), ``batch_rows`` (changes read together, default 5000)
            and ``trust_expression_indexes`` (capture tables with a unique index on an expression,
            whose writers then must not use REPLACE).

    Raises:
        DefinitionError: an option is unknown or invalid.
        SourceUnavailableError: the file can't be opened.
    """

    def __init__(self, capture: Capture) -> None:
        options = dict(capture.database)
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise DefinitionError(
                f"unknown option {unknown[0]!r} in [database] of a SQLite source",
                hint=f"Known options: {', '.join(sorted(_OPTIONS))}.",
            )
        path = options.get("path")
        if not isinstance(path, str):
            raise DefinitionError("a SQLite source needs [database] path", hint='path = "shop.db"')
        self._capture = capture
        self._path = Path(path.reveal() if isinstance(path, Secret) else path)
        self._trust = bool(options.get("trust_expression_indexes", False))
        self._batch = int(options.get("batch_rows", _BATCH))
        self._busy_s = float(options.get("busy_timeout_s", _BUSY_S))
        self._db = self._open()
        self._log = ChangeLog(self._db, Names(capture.name), self._path.name, self._wants)
        self._identity = ""
        self._read = 0
        self._confirmed = 0
        self._purged = 0
        self._purge_at = 0.0
        self._seen: tuple[int, int] | None = None
        self._backlog = True

    # --- setup -------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Find what prevents capture. See ``Source.check``."""
        with self._translated("check the database"):
            return findings(self._db, self._path, self._capture, trust=self._trust)

    def tables(self) -> list[Table]:
        """Return the captured tables. See ``Source.tables``."""
        with self._translated("read the tables"):
            if self._identity:
                return [each.table for each in self._log.live().values()]
            shapes = [read_shape(self._db, name) for name in table_names(self._db)]
            wanted = [each for each in shapes if each is not None and self._wants(each)]
            return [shape.table(self._path.name) for shape in wanted]

    def left_out(self) -> Mapping[str, str]:
        """Return the tables without a key. See ``Source.left_out``."""
        with self._translated("read the tables"):
            shapes = [read_shape(self._db, name) for name in table_names(self._db)]
        return {
            f"{SCHEMA}.{each.name}": NO_KEY
            for each in shapes
            if each is not None
            and self._capture.selects(SCHEMA, each.name)
            and not self._wants(each)
        }

    def find_table(self, schema: str, name: str) -> Table | None:
        """Return a captured table as the triggers know it. See ``Source.find_table``."""
        found = (each for each in self.tables() if (each.schema, each.name) == (schema, name))
        return next(found, None)

    def _wants(self, shape: Shape) -> bool:
        """Return whether a table is captured. ``check`` reports those without a key."""
        captured = bool(shape.key) or self._capture.keyless == "all-columns"
        return captured and self._capture.selects(SCHEMA, shape.name)

    def start(self, position: Position | None) -> Position:
        """Install the triggers, and go to a position. See ``Source.start``."""
        capture = self._capture
        if position is not None and capture.keyless == "refuse":
            # A table that was created later is left out; it must not stop the others.
            capture = replace(capture, keyless="skip")
        with self._translated("check the database"):
            found = findings(self._db, self._path, capture, trust=self._trust)
        problems = [each for each in found if each.severity == "error"]
        if problems:
            raise SetupError(
                "; ".join(each.text for each in problems),
                hint=" ".join(each.fix for each in problems),
            )
        with self._translated("install the triggers"):
            if position is not None:
                self._verify(position)
            with self._log.writing():
                self._log.create()
                self._log.reconcile()
                self._seen = self._versions()
            self._identity = self._log.identity() or ""
            self._read = self._log.last_id() if position is None else int(position["id"])
            self._confirmed = self._read
            return self._position(self._read)

    def _verify(self, position: Position) -> None:
        identity = self._log.identity()
        hint = "Take a new snapshot: tidemill source restart NAME --resnapshot"
        if identity is None or identity != position.get("log"):
            raise PositionLostError(
                f"{self._path} is not the database of the stored position: its change log "
                + ("is missing" if identity is None else "is another one"),
                hint=hint,
            )
        number = int(position["id"])
        first, last = self._log.first_id(), self._log.last_id()
        if last < number or (number > 0 and self._log.stamp(number) != position.get("ts")):
            raise PositionLostError(
                f"{self._path} has an older state than the stored position {number}: it was "
                "probably restored from a backup",
                hint=hint,
            )
        if first is not None and first > number + 1:
            raise PositionLostError(
                f"the changes {number + 1} to {first - 1} are missing in {self._log.names.changes}",
                hint=hint,
            )

    def drop(self) -> None:
        """Remove triggers and tables. See ``Source.drop``."""
        with self._translated("remove the triggers"), self._log.writing():
            self._log.drop()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    # --- the stream --------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Batch | None:
        """Return the next changes. See ``Source.poll``."""
        deadline = time.monotonic() + timeout_s
        with self._translated("read the change log"):
            while True:
                batch = self._look()
                if batch is not None:
                    return batch
                self._purge()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(_LOOK_S, left))  # another process writes: it can only be polled

    def _look(self) -> Batch | None:
        version = self._versions()
        if version is None or (version == self._seen and not self._backlog):
            return None
        if self._seen is None or version[1] != self._seen[1]:
            self._reconcile()
            version = self._versions() or version
        # A change after this look has a newer data_version, so it is not missed.
        self._seen = version
        found, self._backlog = self._fetch()
        return self._decode(found) if found else None

    def _versions(self) -> tuple[int, int] | None:
        """Return (data_version, schema_version), or None while a writer locks the file."""
        try:
            data = int(self._db.execute("PRAGMA main.data_version").fetchone()[0])
            if self._seen is not None and data == self._seen[0]:
                return self._seen
            return data, self._log.schema_version()
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                return None
            raise

    def _reconcile(self) -> None:
        """Follow changes of the schema. If the database is busy, the next look tries again."""
        with self._log.writing():
            self._log.reconcile()

    def _fetch(self) -> tuple[list[Any], bool]:
        """Return the next rows of the change log, and whether there are possibly more."""
        query = f"SELECT * FROM {quoted(self._log.names.changes)} WHERE id > ? ORDER BY id LIMIT ?"
        found = cells.fetch(self._db, query, (self._read, self._batch))
        if found and found[0][0] != self._read + 1:
            raise PositionLostError(
                f"the changes {self._read + 1} to {found[0][0] - 1} are missing in "
                f"{self._log.names.changes}",
                hint="Take a new snapshot: tidemill source restart NAME --resnapshot",
            )
        return found, len(found) == self._batch

    def _decode(self, found: list[Any]) -> Batch:
        last = found[-1]
        self._read = last[0]
        position = self._position(last[0], last[3])
        if not any(row[2] == SHAPED for row in found):
            changes = Changes()
            changes.add(LoggedChanges(found, self._log.layout))
            return Batch(changes, position)
        unpacked, schemas = decode(found, self._log.layout)
        return Batch(unpacked, position, schemas=list(schemas.values()), resync=list(schemas))

    def confirm(self, position: Position) -> None:
        """Let the changes up to here be removed later. See ``Source.confirm``."""
        self._confirmed = int(position["id"])

    def _purge(self) -> None:
        """Remove confirmed changes in slices. The last one stays: it identifies the position."""
        now = time.monotonic()
        if self._confirmed - self._purged <= 1 or now < self._purge_at:
            return
        self._purge_at = now + _PURGE_EVERY_S
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            gone = self._log.purge(self._confirmed, _PURGE_ROWS)
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
        else:
            if gone < _PURGE_ROWS:
                self._purged = self._confirmed
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {int(self._busy_s * 1000)}")

    def reached(self, position: Position, goal: Position) -> bool:
        """Return whether a position is at or after another one."""
        return int(position["id"]) >= int(goal["id"])

    def lag(self) -> Lag:
        """Return how many changes are not confirmed, and about how many bytes they have."""
        with self._translated("measure the lag"):
            changes = max(self._log.last_id() - self._confirmed, 0)
            if not changes:
                return Lag(0, 0, 0)
            row = self._db.execute(
                f"SELECT * FROM {quoted(self._log.names.changes)} WHERE id > ? ORDER BY id LIMIT 1",
                (self._confirmed,),
            ).fetchone()
            if row is None:
                return Lag(0, 0, 0)
            size = sum(len(each) if isinstance(each, str | bytes) else 8 for each in row)
            return Lag(size * changes, max(_now_ms() - int(row[3]), 0), changes)

    # --- snapshots ---------------------------------------------------------------------------

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        """Return rows in key order, with the position of the read. See ``Source.read_chunk``."""
        names = [each.name for each in table.columns]
        keys = ", ".join(column_of(table.name, key) for key in table.key)
        where, values = "", []
        if after is not None:
            values = [cells.key_cell(each) for each in after]
            where = f" WHERE ({keys}) > ({', '.join(map(cells.key_mark, after))})"
        rest = f" FROM main.{quoted(table.name)}{where} ORDER BY {keys} LIMIT ?"
        query = f"SELECT {', '.join(column_of(table.name, name) for name in names)}{rest}"
        with self._translated(f"read table {table.name}"), self._reading():
            high = self._position(self._log.last_id())
            try:
                if after is None:
                    self._refuse_null_keys(table)
                found = cells.fetch(self._db, query, (*values, limit))
                last = self._last_key(table, found, rest, values) if len(found) == limit else None
            except sqlite3.OperationalError as error:
                if "no such" not in str(error):
                    raise
                # An empty chunk would end the snapshot, and delete what the topic has.
                raise SourceUnavailableError(
                    f"table {table.name} was dropped or altered while it was read: {error}",
                    hint="The worker starts again, and reads the table as it is now.",
                ) from error
        return Chunk(_packed(names, found), last, high, _now_ms(), {"change_id": high["id"]})

    def _last_key(self, table: Table, found: list[Any], rest: str, values: list[Any]) -> list[Any]:
        """Return the key of the last row of a chunk, with which the next one continues.

        Args:
            rest: the query's part behind the columns, with the place of its limit.
            values: the values of its places before that.
        """
        names = [each.name for each in table.columns]
        key = [found[-1][names.index(name)] for name in table.key]
        if not cells.has_escape(key):
            return [cells.cell_key(value) for value in key]
        # A text that is not UTF-8 was escaped: its place in the order is that of its bytes.
        columns = ", ".join(
            f"typeof({column}), CAST({column} AS BLOB)"
            for column in (column_of(table.name, name) for name in table.key)
        )
        (row,) = self._db.execute(f"SELECT {columns}{rest} OFFSET {len(found) - 1}", (*values, 1))
        kinds, texts = row[::2], row[1::2]
        return [
            cells.raw_key(text) if kind == "text" else cells.cell_key(value)
            for kind, text, value in zip(kinds, texts, key, strict=True)
        ]

    def _refuse_null_keys(self, table: Table) -> None:
        """Raise if a key is NULL: no comparison finds such a row, so the chunks would skip it.

        A row that gets such a key later is captured as a change.
        """
        nullable = [each.name for each in table.columns if each.nullable and each.name in table.key]
        if not nullable:
            return
        where = " OR ".join(f"{column_of(table.name, name)} IS NULL" for name in nullable)
        query = f"SELECT 1 FROM main.{quoted(table.name)} WHERE {where} LIMIT 1"
        if self._db.execute(query).fetchone() is not None:
            raise SetupError(
                f"table {table.name} has NULL in its primary key ({', '.join(table.key)})",
                hint="Remove these rows, and declare the columns NOT NULL.",
            )

    @contextlib.contextmanager
    def read_consistent(self, tables: Sequence[Table]) -> Iterator[ConsistentRead]:
        """Read tables in one read transaction. See ``Source.read_consistent``."""
        with self._translated("read tables"), self._reading():
            self._read = self._log.last_id()
            position = self._position(self._read)
            source = {"change_id": self._read}
            yield ConsistentRead(position, self._all_rows(tables), _now_ms(), source)

    def _all_rows(self, tables: Sequence[Table]) -> Iterator[tuple[Table, list[Row]]]:
        for table in tables:
            names = [each.name for each in table.columns]
            columns = ", ".join(column_of(table.name, name) for name in names)
            cursor = self._db.execute(f"SELECT {columns} FROM main.{quoted(table.name)}")
            while found := cursor.fetchmany(1_000):
                yield (
                    table,
                    [dict(zip(names, cells.json_cells(row), strict=True)) for row in found],
                )

    def estimate(self, table: Table) -> int:
        """Return the number of rows of a table."""
        with self._translated(f"count table {table.name}"):
            query = f"SELECT count(*) FROM main.{quoted(table.name)}"
            try:
                return int(self._db.execute(query).fetchone()[0])
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # dropped a moment ago
                    return 0
                raise

    # --- the connection ----------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise SourceUnavailableError(
                f"there is no database file {self._path}",
                hint="Create it first, or correct path in the definition.",
            )
        with self._translated("open it"):
            # mode=rw: a file that is deleted in between is not created again.
            db = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=self._busy_s,
                isolation_level=None,
                check_same_thread=False,
            )
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA recursive_triggers = OFF")
            return db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold one read transaction: all reads see the same state."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if _is_busy(error):
                raise SourceUnavailableError(
                    f"{self._path} is locked, so capture can't {what}",
                    hint="Another process holds a lock for long. WAL mode lets readers and a "
                    "writer work at the same time: PRAGMA journal_mode = WAL",
                ) from error
            raise SourceUnavailableError(f"can't {what} ({self._path}): {error}") from error

    def _position(self, number: int, ts: int | None = None) -> Position:
        if ts is None:
            ts = self._log.stamp(number) or 0
        return {"log": self._identity, "id": number, "ts": ts}


def _rows(names: Sequence[str], found: list[Any]) -> list[Row]:
    if cells.need_conversion(found):
        found = [cells.json_cells(row) for row in found]
    return [dict(zip(names, row, strict=True)) for row in found]


def _packed(names: Sequence[str], found: list[Any]) -> PackedRows:
    sample = found[:: max(1, len(found) // _SAMPLE_ROWS)]
    size = sum(cells.bytes_of_row(row) for row in sample) // max(1, len(sample))
    unpack = partial(_rows, names, found)
    return PackedRows(found, value_columns(names), extension.encode_rows, unpack, size)


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
