"""A local copy of a store in an SQLite file, derived from the log: the base of the state.

It has the events themselves, because a request for each event of a short stream would be slow. It
can be built again from the log at any time. ``IndexFile`` opens it, and reads it as of a position;
``index_writing`` appends what was folded. Processes of one machine share the file, and one of them
writes it. Must not know: clients, the rules of the fold.

Rows of ``events`` are never removed, because ids, versions and append conditions need them. What is
truncated or forgotten loses ``data`` and ``metadata``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from tidemill.eventstore.errors import IndexMismatchError, IndexUnusableError
from tidemill.eventstore.events import SOME_BYTES, Query, StoredEvent
from tidemill.eventstore.fold import Place
from tidemill.eventstore.index_files import Lock, make_private, users_path
from tidemill.eventstore.state import Chunk, Head, Wanted
from tidemill.eventstore.write_ahead import roll_back, write_ahead

K = TypeVar("K")
V = TypeVar("V")
FORMAT = 1
_BUSY_S = 30.0
_IDS = 500
"""Ids that one statement looks for."""
_NAMES = 100_000
"""Names of streams and types that are remembered."""
_SCHEMA = """
CREATE TABLE about (
  format INTEGER, cluster TEXT, topic TEXT, topic_id TEXT,
  position INTEGER, hash BLOB, read INTEGER, digest BLOB, fold INTEGER
);
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE streams (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, category INTEGER NOT NULL,
  truncated INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE events (
  position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, version INTEGER NOT NULL,
  type INTEGER NOT NULL, category INTEGER NOT NULL, schema INTEGER NOT NULL,
  time_ms INTEGER NOT NULL, id BLOB NOT NULL, digest BLOB NOT NULL, tags TEXT, data BLOB,
  metadata BLOB
);
CREATE UNIQUE INDEX events_stream ON events (stream, version);
CREATE UNIQUE INDEX events_id ON events (id);
CREATE INDEX events_type ON events (type);
CREATE INDEX events_category ON events (category);
CREATE TABLE tags (tag INTEGER, position INTEGER, PRIMARY KEY (tag, position)) WITHOUT ROWID;
CREATE TABLE forgotten (key TEXT PRIMARY KEY, read INTEGER NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "type, data, id, metadata, tags, schema, stream, version, position, time_ms"
_NO_TAGS: frozenset[str] = frozenset()


class About(NamedTuple):
    """The log that an index belongs to."""

    cluster: str
    topic: str
    topic_id: str


class Indexed(NamedTuple):
    """The point up to which the index has the log: the head, and the digest of the last record."""

    head: Head
    digest: bytes


class IndexFile:
    """An index, opened. Threads can share it.

    Args:
        path: of the file. It is created, with its folder, if it is missing.
        about: the log.

    Raises:
        IndexMismatchError: the index belongs to another log.
        IndexUnusableError: the file can't be opened or created, or is damaged.
    """

    def __init__(self, path: Path, about: About) -> None:
        self.path = path
        self._users = Lock(users_path(path))
        if not self._users.take(shared=True):
            self._users.close()
            raise IndexUnusableError(f"the index {path} is being deleted", hint="Try again.")
        self._free: list[sqlite3.Connection] = []
        self._is_closed = False
        self._fold: Any = None
        self._types: dict[int, str] = {}
        self._stream_names: dict[int, str] = {}
        self._stream_ids: dict[str, int] = {}
        try:
            make_private(path)
            with self.connection() as connection:
                _create(connection, about)
                _check(connection, about, path)
            self._fold = self.connect()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise unusable(path, error) from error
            raise

    def connect(self) -> sqlite3.Connection:
        """Return a new connection, in autocommit mode."""
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        write_ahead(connection, _BUSY_S)
        # What the system loses when the power fails is read from the log again.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection."""
        try:
            connection = self._free.pop()
        except IndexError:
            try:
                connection = self.connect()
            except sqlite3.Error as error:
                raise unusable(self.path, error) from error
        try:
            yield connection
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error
        finally:
            if self._is_closed:
                connection.close()
            else:
                self._free.append(connection)

    def close(self) -> None:
        """Close all connections that are not lent."""
        self._is_closed = True
        while self._free:
            self._free.pop().close()
        if self._fold is not None:
            self._fold.close()
        self._users.close()

    def indexed(self) -> Indexed:
        """Return the point up to which the index has the log."""
        with self.connection() as connection:
            return indexed_of(connection)

    # What the fold asks, one thread at a time: it has a connection of its own.

    def version(self, stream: str, at: int) -> int:
        """Return the number of events of a stream as of a position."""
        try:
            number = self._stream_ids.get(stream) or self._stream_id(self._fold, stream)
            row = self._fold.execute(
                "SELECT version FROM events WHERE stream = ? AND position <= ? "
                "ORDER BY version DESC LIMIT 1",
                (number, at),
            ).fetchone()
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error
        return int(row[0]) if row else 0

    def places(self, ids: Sequence[bytes], at: int) -> dict[bytes, Place]:
        """Return where event ids are stored, of those that are."""
        found = {}
        try:
            for start in range(0, len(ids), _IDS):
                some = ids[start : start + _IDS]
                rows = self._fold.execute(
                    "SELECT id, position, version, digest FROM events WHERE id IN "
                    f"({', '.join('?' * len(some))})",
                    some,
                )
                for event_id, position, version, digest in rows:
                    if position <= at:
                        found[event_id] = Place(position, version, digest)
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error
        return found

    def first_match(self, query: Query, after: int, at: int) -> int | None:
        """Return the position of the first event that a query selects."""
        with self.connection() as connection:
            found = self._positions(connection, query, None, after, at, False, 1)
        return found[0] if found else None

    def is_forgotten(self, key: str, offset: int) -> bool:
        """Return whether a key was deleted by a record up to an offset."""
        row = self._row("SELECT read FROM forgotten WHERE key = ?", key)
        return bool(row) and row[0] <= offset

    def truncated(self, stream: str) -> int:
        """Return the version below which the events of a stream are not read."""
        row = self._row("SELECT truncated FROM streams WHERE name = ?", stream)
        return int(row[0]) if row else 0

    def streams(self, category: str | None, after: str, limit: int) -> list[str]:
        """Return names of streams, sorted, behind a name."""
        with self.connection() as connection:
            wanted, values = "", [after]
            if category is not None:
                wanted = "AND category = (SELECT id FROM names WHERE name = ?)"
                values.append(category or "-")
            rows = connection.execute(
                f"SELECT name FROM streams WHERE name > ? {wanted} ORDER BY name LIMIT ?",
                (*values, limit),
            )
            return [row[0] for row in rows]

    def _row(self, sql: str, *values: Any) -> Any:
        """Return the first row of a query; None if it has none."""
        with self.connection() as connection:
            return connection.execute(sql, values).fetchone()

    def _stream_id(self, connection: sqlite3.Connection, stream: str) -> int:
        """Return the number of a stream; -1 if it has no events."""
        number = self._stream_ids.get(stream)
        if number is None:
            row = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
            if row is None:
                return -1
            number = int(row[0])
            remember(self._stream_ids, stream, number)
            remember(self._stream_names, number, stream)
        return number

    # Reading.

    def of_stream(
        self, stream: str, after: int, to: int, at: int, backwards: bool, limit: int
    ) -> Chunk:
        """Return events of a stream: versions above ``after``, up to and with ``to``."""
        with self.connection() as connection:
            number = self._stream_id(connection, stream)
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE stream = ? AND version > ? AND version <= ? "
                "AND position <= ? AND data IS NOT NULL "
                f"ORDER BY version {_way(backwards)} LIMIT ?",
                (number, after, to, at, limit),
            )
            events, is_cut = self._events(connection, rows)
        is_last = not is_cut and len(events) < limit
        return Chunk(events, None if is_last else events[-1].version)

    def of_all(self, after: int, to: int, wanted: Wanted, backwards: bool, limit: int) -> Chunk:
        """Return events with positions above ``after``, up to and with ``to``."""
        with self.connection() as connection:
            positions = self._wanted(connection, wanted, after, to, backwards, limit)
            if positions is None:
                rows = connection.execute(
                    f"SELECT {_COLUMNS} FROM events WHERE position > ? AND position <= ? "
                    f"AND data IS NOT NULL ORDER BY position {_way(backwards)} LIMIT ?",
                    (after, to, limit),
                )
            else:
                rows = connection.execute(
                    f"SELECT {_COLUMNS} FROM events WHERE position IN "
                    "(SELECT value FROM json_each(?)) AND data IS NOT NULL "
                    f"ORDER BY position {_way(backwards)}",
                    (orjson.dumps(positions).decode(),),
                )
            events, is_cut = self._events(connection, rows)
        if is_cut or (positions is None and len(events) >= limit):
            return Chunk(events, events[-1].position)
        return Chunk(events, positions[-1] if positions and len(positions) >= limit else None)

    def _wanted(
        self,
        connection: sqlite3.Connection,
        wanted: Wanted,
        after: int,
        to: int,
        backwards: bool,
        limit: int,
    ) -> list[int] | None:
        """Return the first positions of what is wanted; None if that is everything."""
        if not wanted.queries and wanted.category is None:
            return None
        found: set[int] = set()
        for query in wanted.queries or (Query(),):
            found.update(
                self._positions(connection, query, wanted.category, after, to, backwards, limit)
            )
        return sorted(found, reverse=backwards)[:limit]

    def _positions(
        self,
        connection: sqlite3.Connection,
        query: Query,
        category: str | None,
        after: int,
        to: int,
        backwards: bool,
        limit: int,
    ) -> list[int]:
        """Return the first positions that a query selects."""
        tags, types = self._ids(connection, query.tags), self._ids(connection, query.types)
        if len(tags) < len(query.tags) or (query.types and not types):
            return []
        # The rows of the first tag are looked through, or the index of types or of categories.
        tables = ["tags t0"] if tags else []
        if not tags or types or category is not None:
            tables.append("events e")
        position = "t0.position" if tags else "e.position"
        terms = [f"{position} > ?", f"{position} <= ?"]
        values: list[int | str] = [after, to]
        if tags:
            terms.append("t0.tag = ?")
            values.append(tags[0])
        if len(tags) > 1:  # not a table for each: SQLite joins 64
            terms.append(
                "NOT EXISTS (SELECT 1 FROM json_each(?) w WHERE NOT EXISTS "
                "(SELECT 1 FROM tags t WHERE t.tag = w.value AND t.position = t0.position))"
            )
            values.append(orjson.dumps(tags[1:]).decode())
        if len(tables) > 1:
            terms.append("e.position = t0.position")
        if types:
            # A statement has 32,766 values at most, and is planned for their number.
            few = len(types) <= _IDS
            among = ", ".join("?" * len(types)) if few else "SELECT value FROM json_each(?)"
            terms.append(f"e.type IN ({among})")
            values += types if few else [orjson.dumps(types).decode()]
        if category is not None:
            terms.append("e.category = ?")
            values.append((self._ids(connection, {category or "-"}) or [-1])[0])
        rows = connection.execute(
            f"SELECT {position} FROM {' CROSS JOIN '.join(tables)} WHERE {' AND '.join(terms)} "
            f"ORDER BY {position} {_way(backwards)} LIMIT ?",
            (*values, limit),
        )
        return [row[0] for row in rows]

    def _ids(self, connection: sqlite3.Connection, names: Iterable[str]) -> list[int]:
        """Return the numbers of types, tags or categories. Those that never occurred have none."""
        found = []
        for name in sorted(names):
            row = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
            if row:
                found.append(int(row[0]))
        return found

    def _events(
        self, connection: sqlite3.Connection, rows: Iterator[Any]
    ) -> tuple[list[StoredEvent], bool]:
        """Return rows as events, and whether there are more: the data have too many bytes."""
        events: list[StoredEvent] = []
        types, streams = self._types, self._stream_names
        size = 0
        for row in rows:
            kind, data, event_id, metadata, tags, schema, stream, version, position, at = row
            size += len(data or b"") + len(metadata or b"")
            if size > SOME_BYTES and events:
                return events, True
            events.append(
                StoredEvent(
                    types.get(kind) or _name(connection, "names", types, kind),
                    data or b"",
                    _uuid(event_id),
                    metadata or b"",
                    frozenset(orjson.loads(tags)) if tags else _NO_TAGS,
                    schema,
                    streams.get(stream) or _name(connection, "streams", streams, stream),
                    version,
                    position,
                    at,
                )
            )
        return events, False


def _name(connection: sqlite3.Connection, table: str, known: dict[int, str], number: int) -> str:
    """Return the name with a number, which is not among the known ones."""
    (name,) = connection.execute(f"SELECT name FROM {table} WHERE id = ?", (number,)).fetchone()
    return remember(known, number, str(name))


def _uuid(value: bytes) -> uuid.UUID:
    """Return a UUID of 16 bytes. The constructor takes five times as long."""
    made = _new(uuid.UUID)
    _set_int(made, int.from_bytes(value))
    _set_safe(made, uuid.SafeUUID.unknown)
    return made


_new = object.__new__
_set_int: Any = vars(uuid.UUID)["int"].__set__
_set_safe: Any = vars(uuid.UUID)["is_safe"].__set__


def _way(backwards: bool) -> str:
    return "DESC" if backwards else "ASC"


def remember(known: dict[K, V], key: K, value: V) -> V:
    """Add to what is remembered, which is bounded; return the value."""
    if len(known) >= _NAMES:
        known.clear()
    known[key] = value
    return value


def unusable(path: Path, error: BaseException) -> IndexUnusableError:
    """Return the error of an index that can't be read or written."""
    return IndexUnusableError(
        f"the index {path} can't be used: {error}",
        hint="Check the folder and its free space. A damaged index can be deleted: it is built "
        "again from the log.",
    )


def mismatch(path: Path, why: str) -> IndexMismatchError:
    """Return the error of an index that belongs to another log."""
    return IndexMismatchError(
        f"the index {path} does not belong to the log: it {why}",
        hint="Find out why the log was replaced or shortened. Then rebuild the index: "
        "tidemill events rebuild",
    )


def _create(connection: sqlite3.Connection, about: About) -> None:
    """Create the tables if the file is new. Another process may do that at the same time."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
            head = Head()
            connection.execute(
                "INSERT INTO about VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (FORMAT, *about, head.position, head.hash, head.offset, b"", head.fold),
            )
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def _check(connection: sqlite3.Connection, about: About, path: Path) -> None:
    """Check that an index belongs to a log."""
    (found,) = connection.execute("SELECT format, cluster, topic, topic_id FROM about")
    if found != (FORMAT, *about):
        raise mismatch(
            path,
            f"is of topic {found[2]!r} with the id {found[3]} of cluster {found[1]}, in format "
            f"{found[0]}; the log is topic {about.topic!r} with the id {about.topic_id} of cluster "
            f"{about.cluster}",
        )


def indexed_of(connection: sqlite3.Connection) -> Indexed:
    """Return the point up to which the index has the log."""
    row = connection.execute("SELECT position, hash, read, fold, digest FROM about").fetchone()
    return Indexed(Head(*row[:4]), row[4])
