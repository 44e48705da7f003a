"""The PostgreSQL source: the contract's methods, put together from the other modules.

One connection reads the stream, another one asks the catalog and reads rows. Must not know: Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tidemill.connect.cdc.contract import (
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
    CaptureError,
    DefinitionError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)
from tidemill.connect.cdc.postgres import check, publication, slot
from tidemill.connect.cdc.postgres.catalog import Catalog
from tidemill.connect.cdc.postgres.connection import ReplicationConnection
from tidemill.connect.cdc.postgres.decoding.shapes import Shapes
from tidemill.connect.cdc.postgres.decoding.stream import OWN_PREFIX, Stream
from tidemill.connect.cdc.postgres.errors import translating
from tidemill.connect.cdc.postgres.lsn import Origin, Place, origin_of, place_of, show, to_json
from tidemill.connect.cdc.postgres.reading import contested, toast, visibility
from tidemill.connect.cdc.postgres.reading.chunks import Reader
from tidemill.connect.cdc.postgres.settings import Settings, settings_of
from tidemill.connect.cdc.postgres.tables import Tables
from tidemill.connect.cdc.postgres.watching import Watch

_BATCH_CHANGES = 5000
_BATCH_BYTES = 8 * 1024 * 1024
_RECEIVED = 1000
"""Most messages that are received before they are looked at."""
_DELIVERED = 50_000
"""Most numbers of transactions to keep before asking which are visible."""
_HEARTBEAT_S = 5.0
"""How often an idle source returns a batch without changes, so that its slot moves."""
_REFRESH_S = 10.0
"""How often to look for new tables."""
_NUDGE_S = 0.1
_CONSISTENT_ROWS = 5000
_OLDEST = 120000


class PostgresSource:
    """A PostgreSQL database, version 12 or newer, as a source of changes.

    Raises:
        DefinitionError: The definition is invalid.
        SetupError: psycopg is not installed.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._settings: Settings = settings_of(capture)
        self._query: Any = None
        self._catalog: Catalog | None = None
        self._replication: ReplicationConnection | None = None
        self._is_streaming = False
        self._origin = Origin("", 0, "", self._settings.slot, 0)
        self._snapshot = ""
        name = self._settings.publication
        self._tables = Tables(self._open_catalog, capture, name)
        self._watch = Watch(self._open_catalog, self._tables, capture, name)
        self._shapes = Shapes(self._open_catalog, "", self._tables.selects)
        self._stream = Stream(self._shapes, Place(0))
        self._returned = Place(0)
        self._wanted = 0
        self._unconfirmed: list[tuple[int, int]] = []
        self._received: list[bytes] = []
        self._fed = 0  # so many of the received messages were given to the stream
        self._due = {"heartbeat": 0.0, "refresh": 0.0, "nudge": 0.0, "empty": 0.0}

    def check(self) -> list[Finding]:
        """Find what the database lacks, without changing anything."""
        return check.findings(self._open_catalog(), self._capture, self._settings)

    def tables(self) -> list[Table]:
        """Return the captured tables as they are now."""
        return self._tables.captured()

    def left_out(self) -> Mapping[str, str]:
        """Return the tables that are selected and not published; see ``Source.left_out``."""
        return publication.left_out(self._open_catalog(), self._settings.publication, self._capture)

    def find_table(self, schema: str, name: str) -> Table | None:
        """Return a captured table as it is now."""
        return self._tables.find(schema, name)

    def start(self, position: Position | None) -> Position:
        """Create or verify slot and publication, and go to a position."""
        with self._explained():
            return self._start(position)

    def _start(self, position: Position | None) -> Position:
        self.close()
        catalog = self._open_catalog()
        if catalog.version < _OLDEST:
            raise SetupError(f"PostgreSQL {catalog.version // 10000} is too old: use 12 or newer")
        if position is None:
            self._tables.refuse_keyless()
        else:
            publication.verify(catalog, self._settings.publication, self._capture)
        self._watch.prepare()
        if position is None:
            publication.complete(catalog, self._settings.publication, self._capture)
        replication = ReplicationConnection.connect(self._settings.conninfo)
        self._replication = replication
        if position is None:
            server = slot.identify(replication)
            lsn, self._snapshot = slot.create(replication, catalog, self._settings)
            place = Place(lsn)
            self._origin = Origin(
                server.system, server.timeline, server.database, self._settings.slot, lsn
            )
        else:
            place = self._resume(replication, catalog, position)
        self._shapes = self._watch.start(self._origin.database, position)
        self._stream = Stream(self._shapes, place, self._settings.spool_dir)
        self._returned, self._wanted = place, 0
        self._unconfirmed.clear()
        now = time.monotonic()
        self._due["refresh"] = now + _REFRESH_S
        self._due["heartbeat"] = now + self._settings.heartbeat_s
        return self._at(place)

    def poll(self, timeout_s: float) -> Batch | None:
        """Return the next changes in commit order, or None if there are none within the time."""
        replication = self._streaming()
        stream, deadline = self._stream, time.monotonic() + timeout_s
        self._refresh_if_due()
        while True:
            if stream.is_replaying:
                stream.replay(_BATCH_CHANGES, _BATCH_BYTES)
            if len(stream.changes) >= _BATCH_CHANGES or stream.size >= _BATCH_BYTES:
                return self._batch()
            if self._fed < len(self._received):
                self._fed = stream.feed_all(self._received, self._fed)
                continue
            self._received, self._fed = replication.receive_many(_RECEIVED), 0
            if self._received or replication.wait(0):
                continue
            stream.keepalive(replication.server_end)
            if self._has_something():
                return self._batch()
            replication.send_status_if_due()
            left = deadline - time.monotonic()
            self._write_if_due()
            if not replication.wait(min(left, _NUDGE_S)) and left <= 0:
                return None

    def confirm(self, position: Position) -> None:
        """Let the slot move: Kafka holds everything up to here durably."""
        lsn = place_of(position).lsn
        self._unconfirmed = [each for each in self._unconfirmed if each[0] > lsn]
        if self._replication is not None:
            self._replication.confirm(lsn)

    def reached(self, position: Position, goal: Position) -> bool:
        """Return whether ``position`` is at or after ``goal``."""
        return place_of(position) >= place_of(goal)

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        """Return the rows after a key, in the order of the keys."""
        connection = self._open_catalog().connection
        with (
            self._explained(),
            visibility.open_snapshot(connection, self._stream.delivered) as high,
        ):
            ts_ms = _now_ms()
            reader = self._tables.reader(connection, table)
            rows, last = _read(reader, table, after, limit)
        self._wanted = max(self._wanted, high)
        self._due["nudge"] = time.monotonic() + _NUDGE_S
        return Chunk(rows, last, self._at(Place(high)), ts_ms, _before(high))

    @contextmanager
    def read_consistent(self, tables: Sequence[Table]) -> Iterator[ConsistentRead]:
        """Read tables as of the place where the slot starts, by the snapshot that it exported."""
        if not self._snapshot or self._is_streaming:
            raise SourceUnavailableError(
                "the snapshot of the slot is gone: it is valid right after the slot's creation only"
            )
        connection = _connected(self._settings.conninfo)
        try:
            with translating("can't use the exported snapshot"):
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(f"SET TRANSACTION SNAPSHOT '{self._snapshot}'")
            yield ConsistentRead(
                self._at(self._returned),
                self._all_rows(connection, tables),
                _now_ms(),
                _before(self._returned.lsn),
            )
        finally:
            connection.close()

    def estimate(self, table: Table) -> int:
        """Return the planner's estimate of the number of rows."""
        with self._explained():
            return self._tables.estimate(table)

    def lag(self) -> Lag:
        """Return how much log the slot holds back, and the age of the oldest change in it."""
        held = self._open_catalog().value(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8"
            " FROM pg_replication_slots WHERE slot_name = %s",
            (self._settings.slot,),
            doing="can't read the replication slots",
        )
        now_ms = _now_ms()
        oldest = max(0, now_ms - self._unconfirmed[0][1]) if self._unconfirmed else 0
        return Lag(bytes=None if held is None else max(0, held), ms=oldest)

    def drop(self) -> None:
        """Drop the slot and, if we have created it, the publication."""
        self.close()
        catalog = self._open_catalog()
        if slot.when_free(catalog, self._settings.slot) is not None:
            replication = ReplicationConnection.connect(self._settings.conninfo)
            try:
                slot.drop(replication, self._settings.slot)
            finally:
                replication.close()
        publication.drop(catalog, self._settings.publication, self._capture)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._stream.close()
        self._received, self._fed = [], 0
        for connection in (self._replication, self._query):
            if connection is not None:
                connection.close()
        self._replication = self._query = self._catalog = None
        self._is_streaming, self._snapshot = False, ""

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Give an error the statements that ``check`` finds for it."""
        try:
            yield
        except (PositionLostError, DefinitionError):
            raise
        except CaptureError as error:
            try:
                found = [each for each in self.check() if each.severity == "error"]
            except CaptureError:
                found = []  # the server does not answer
            if not found:
                raise
            raise SetupError(
                f"{error} ({'; '.join(each.text for each in found)})",
                hint="Run: " + " ".join(each.fix for each in found),
            ) from error

    def _open_catalog(self) -> Catalog:
        if self._catalog is None or self._query.closed:
            self._query = _connected(self._settings.conninfo)
            self._catalog = Catalog(self._query)
        return self._catalog

    def _resume(
        self, replication: ReplicationConnection, catalog: Catalog, position: Position
    ) -> Place:
        try:
            place, origin = place_of(position), origin_of(position)
        except ValueError as fault:
            raise PositionLostError(f"the stored position can't be used: {fault}") from None
        self._origin = slot.verify(replication, catalog, self._settings.slot, place, origin)
        return place

    def _at(self, place: Place) -> Position:
        return to_json(place, self._origin, self._watch.horizon)

    def _streaming(self) -> ReplicationConnection:
        """Return the replication connection; the first call starts the stream."""
        if self._replication is None:
            raise SourceUnavailableError("the source is not started")
        if not self._is_streaming:
            version = self._open_catalog().version
            slot.start_streaming(self._replication, version, self._settings, self._returned.lsn)
            self._is_streaming = True
            self._replication.confirm(self._returned.lsn)
        return self._replication

    def _has_something(self) -> bool:
        stream, news = self._stream, self._shapes.news
        if stream.changes or stream.ended or news:
            return True
        place = stream.place
        if place <= self._returned:
            return False
        is_wanted = self._returned.lsn < self._wanted <= place.lsn
        return is_wanted or time.monotonic() >= self._due["empty"]

    def _batch(self) -> Batch:
        stream, news = self._stream, self._shapes.news
        if stream.incomplete or stream.contested:
            connection = self._open_catalog().connection
            with self._explained(), visibility.open_snapshot(connection, stream.delivered):
                by_keys = self._tables.by_keys(connection)
                toast.fill(stream.incomplete, by_keys)
                contested.settle(stream.contested, by_keys)
        if len(stream.delivered) > _DELIVERED:
            visibility.prune(self._open_catalog().connection, stream.delivered)
        place, found = stream.place, stream.take()
        if place < self._returned:  # stored, it would deliver changes twice after a restart
            raise CaptureError(
                f"the stream went back from {show(self._returned.lsn)} to {show(place.lsn)}",
                hint="The worker starts again at the stored position. Please report it.",
            )
        self._watch.took(news.notes)
        reasons = news.resync | dict.fromkeys(found.truncated, "it was truncated")
        batch = Batch(
            found.changes, self._at(place), found.ended, news.schemas, list(reasons), reasons,
            news.notes,
        )  # fmt: skip
        news.schemas, news.resync, news.notes = [], {}, {}
        self._returned = place
        if found.changes:
            self._unconfirmed.append((place.lsn, found.changes.ts_ms))
        self._due["empty"] = time.monotonic() + _HEARTBEAT_S
        return batch

    def _refresh_if_due(self) -> None:
        """Look for new and changed tables from time to time.

        New ones are added to a publication of ours. The stream describes a changed table at its
        next row only, which can be after a restart, when its earlier shape is not known any more.
        """
        if time.monotonic() < self._due["refresh"]:
            return
        self._due["refresh"] = time.monotonic() + _REFRESH_S
        self._watch.look(self._shapes)

    def _write_if_due(self) -> None:
        """Write a logical message if the stream must move, or as a heartbeat.

        A place that a chunk names can be in log that is not flushed while a long transaction is
        open, and the server sends flushed log only. The message's commit flushes it.
        """
        now = time.monotonic()
        is_waiting = self._stream.place.lsn < self._wanted and now >= self._due["nudge"]
        every = self._settings.heartbeat_s
        if is_waiting or (every and now >= self._due["heartbeat"]):
            self._due["nudge"] = now + 1.0
            self._due["heartbeat"] = now + every
            self._open_catalog().value(
                "SELECT pg_logical_emit_message(true, %s, '')::text",
                (f"{OWN_PREFIX}.heartbeat",),
                doing="can't write a logical message",
            )

    def _all_rows(
        self, connection: Any, tables: Sequence[Table]
    ) -> Iterator[tuple[Table, list[Row]]]:
        for table in tables:
            reader = self._tables.reader(connection, table)
            if reader is not None:
                for rows in reader.all(_CONSISTENT_ROWS):
                    yield table, rows


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(
    reader: Reader | None, table: Table, after: list[Any] | None, limit: int
) -> tuple[Sequence[Row], list[Any] | None]:
    """Return a chunk. Its rows are packed unless a column has disappeared from the table."""
    if reader is None:
        return [], None
    rows, last = reader.chunk(after, limit)
    names = [name for name, _, _, _ in reader.columns]
    is_complete = names == [each.name for each in table.columns]
    return rows if is_complete else rows.unpacked(), last


def _before(lsn: int) -> Row:
    """Return the source block of rows that were read: before every commit that they lack.

    The next commit record can start exactly at ``lsn``.
    """
    return {"lsn": lsn - 1, "commit_lsn": lsn - 1}


def _connected(conninfo: str) -> Any:
    import psycopg

    with translating("can't connect to PostgreSQL"):
        return psycopg.connect(conninfo, autocommit=True)
