"""Event groups of the binary log as changes: one transaction, or a single statement.

The server writes a group when it commits, so a group is never rolled back as a whole, unless it
also changed tables without transactions. A group is held back until its end. A group with more
than ``MOST_HELD`` changes is delivered in parts, at the ends of rows events; the position counts
the events of the group that were delivered.

Must not know connections or Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidemill.connect.cdc.binlog.decoding.events import (
    Event,
    GtidEvent,
    QueryEvent,
    RotateEvent,
    RowsEvent,
    TableMapEvent,
    UnsupportedEvent,
    XaPrepareEvent,
    XidEvent,
)
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.dialect import LogPosition
from tidemill.connect.cdc.binlog.known import KnownTables
from tidemill.connect.cdc.binlog.packed_rows import Run, Transaction, decode_rows, scan
from tidemill.connect.cdc.binlog.shapes import Shapes
from tidemill.connect.cdc.binlog.statements import Effect, Statement, parse_statement
from tidemill.connect.cdc.contract import Batch, Change, Table, TransactionEnd
from tidemill.connect.cdc.packed import Changes

MOST_HELD = 20_000
"""Changes of one group that are held back until its end."""


@dataclass(slots=True)
class _Group:
    """The group that is being read.

    Attributes:
        events: rows events of the group so far, also those of tables that are not captured.
        skip: rows events that were delivered before a restart.
        savepoints: number of held changes at each savepoint.
        was_split: some changes were delivered before the group's end.
        is_standalone: see ``GtidEvent``.
        is_xa: the group belongs to an XA transaction.
    """

    begin: GtidEvent
    skip: int
    is_standalone: bool | None
    is_xa: bool
    events: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    was_split: bool = False


class Groups:
    """Collects changes from events, and cuts them into batches.

    Args:
        position: where the stream of events begins.
        shapes: the tables by the ids of the stream.
        known: the captured tables as they were last seen.
        table_of: returns a captured table by database and name, or None.
        names: returns the names of the captured tables.
        keeps_rollback: returns whether a table keeps changes of a transaction that was rolled back.

    Attributes:
        position: what was read completely; parts of a group count when they were taken.
    """

    def __init__(
        self,
        position: LogPosition,
        shapes: Shapes,
        known: KnownTables,
        table_of: Callable[[str, str], Table | None],
        names: Callable[[], Iterable[str]],
        keeps_rollback: Callable[[Table], bool],
    ) -> None:
        self.position = position
        self._shapes = shapes
        self._known = known
        self._table_of = table_of
        self._names = names
        self._keeps_rollback = keeps_rollback
        self._group: _Group | None = None
        self._file = ""
        self._clear()

    def _clear(self) -> None:
        self._changes = Changes()
        self._complete = 0
        self._ended: list[TransactionEnd] = []
        self._schemas: list[Table] = []
        self._resync: dict[str, str] = {}

    @property
    def is_between_groups(self) -> bool:
        """Whether no group is read in part."""
        return self._group is None

    @property
    def has_news(self) -> bool:
        """Whether a table must be read again."""
        return bool(self._resync or self._known.news.resync)

    @property
    def has_notes(self) -> bool:
        """Whether there is something to store that can wait for the next changes."""
        return bool(self._known.news.notes)

    @property
    def held(self) -> int:
        """The number of changes that were read and not taken."""
        return len(self._changes)

    @property
    def delivered(self) -> LogPosition:
        """The position behind every group of which something was taken."""
        group = self._group
        if group is None or not (group.was_split or group.skip):
            return self.position
        return self.position.after(group.begin.gtid, "", 0)

    def skim(self, received: list[bytes], begin: int, *, checksums: bool) -> int:
        """Add events that need no decision, without parsing them.

        Args:
            received: packets with events. They must not be changed afterwards.
            begin: the first one.

        Returns:
            The place of the first one that was not added.
        """
        group = self._group
        if group is None or group.is_xa or group.events < group.skip:
            return begin
        most = max(1, self._complete + MOST_HELD + 1 - len(self._changes))
        found = scan(self._shapes.packable, received, begin, checksums=checksums, most=most)
        group.events += found.events
        if found.changes:
            packets = received[begin : found.end]
            self._changes.add(Run(found, packets, checksums, self._transaction(group)))
        return found.end

    def add(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case RowsEvent():
                self._add_rows(event)
            case TableMapEvent():
                self._shapes.add(event)
            case GtidEvent():
                self._begin(event)
            case XidEvent() | XaPrepareEvent():
                self._end(event)
            case QueryEvent():
                self._query(event)
            case RotateEvent():
                self._file = event.file
                if event.timestamp_s:
                    self._shapes.forget_ids()
                if self._group is None:
                    self.position = self.position.at(event.file, event.position)
            case UnsupportedEvent():
                self._refuse(event)
            case _ if self._group is None and event.end_position:
                self.position = self.position.at(self._file, event.end_position)

    def take(self) -> Batch | None:
        """Return what was read; None in the middle of a group that is not large."""
        if self._group is not None:
            is_large = len(self._changes) - self._complete > MOST_HELD
            return self._take_part(self._group) if is_large else None
        return self._batch(self.position)

    def _take_part(self, group: _Group) -> Batch:
        group.was_split = True
        return self._batch(self.position.within(group.events))

    def _batch(self, position: LogPosition) -> Batch:
        news = self._known.take()
        reasons = {**news.resync, **self._resync}
        batch = Batch(
            self._changes,
            position.stored(),
            self._ended,
            [*news.schemas, *self._schemas],
            list(reasons),
            reasons,
            news.notes,
        )
        self._clear()
        return batch

    # --- groups ----------------------------------------------------------------------------------

    def _begin(self, event: GtidEvent) -> None:
        if not event.gtid:
            raise BinlogError(
                f"the binary log has a transaction without an id at {self._at(event)}",
                hint="The server ran with gtid_mode=OFF. Take a new snapshot: tidemill source "
                "restart NAME --resnapshot",
            )
        skip = self.position.skip if self._group is None else 0
        self._shapes.trim()
        self._group = _Group(event, skip, event.is_standalone, event.is_xa)

    def _end(self, event: Event) -> None:
        group = self._group
        if group is None:
            return
        self._group = None
        begin = group.begin
        # The part that was delivered before a restart can have had the last change.
        if len(self._changes) > self._complete or group.was_split or group.skip:
            ts_ms = begin.committed_ms or event.timestamp_s * 1000
            self._ended.append(TransactionEnd(begin.gtid, ts_ms))
        self._complete = len(self._changes)
        self.position = self.position.after(begin.gtid, self._file, event.end_position)

    def _query(self, event: QueryEvent) -> None:
        statement = parse_statement(self._shapes.text_of(event))
        group = self._group
        if group is not None and group.is_standalone is None:
            group.is_standalone = statement.kind not in ("begin", "xa_start")
            group.is_xa = statement.kind == "xa_start"
        match statement.kind:
            case "commit":
                self._end(event)
                return
            case "rollback":
                self._roll_back(event, self._complete)
                self._end(event)
                return
            case "savepoint" if group is not None:
                group.savepoints[statement.name] = len(self._changes)
            case "rollback_to" if group is not None:
                self._roll_back(event, group.savepoints.get(statement.name, -1))
            case "truncate":
                self._truncate(event, statement)
            case _ if statement.effects or statement.unread:
                self._define(event, statement)
            case "change" if self._may_be_captured(event):
                self._refuse_statement(event)
        is_xa_end = statement.kind == "xa" and group is not None and group.is_xa
        if group is not None and (group.is_standalone or is_xa_end):
            self._end(event)

    def _roll_back(self, event: Event, start: int) -> None:
        """Drop held changes from ``start`` on, but for those of tables without transactions."""
        group = self._group
        if group is None:
            return
        if group.was_split or group.skip or start < 0:
            raise BinlogError(
                f"a large transaction that changes tables with and without transactions was partly "
                f"rolled back at {self._at(event)}; its changes were delivered already",
                hint="Take a new snapshot: tidemill source restart NAME --resnapshot",
            )
        changes, self._changes = self._changes.unpacked(), Changes()
        for number, change in enumerate(changes):
            table = change.table
            if number < start or (table is not None and self._keeps_rollback(table)):
                self._changes.append(change)

    def _truncate(self, event: QueryEvent, statement: Statement) -> None:
        for place in self._known.places(statement.database or event.database, statement.name):
            table = self._table_of(*place)
            if table is not None:
                self._changes.append(self._truncation(event, table))
                self._resync[table.id] = "TRUNCATE TABLE deleted its rows"

    def _define(self, event: QueryEvent, statement: Statement) -> None:
        """Find tables whose rows a statement has changed without rows events."""
        effects = list(statement.effects)
        if statement.unread:
            effects += [
                Effect("changed", *place, "a statement that is not understood names it")
                for place in self._known.named_in(event.statement)
            ]
        for effect in effects:
            for table in self._known.apply(effect, event.database):
                self._shapes.expect(table)

    def _refuse(self, event: UnsupportedEvent) -> None:
        """Raise an error, unless the event changes a table that is not captured."""
        if event.table_id is not None and self._shapes.get(event.table_id) is None:
            if self._group is not None:
                self._group.events += 1
            return
        raise BinlogError(
            f"the binary log has {event.what} at {self._at(event)}, which is not supported",
            hint=event.hint or "Exclude the table.",
        )

    def _may_be_captured(self, event: QueryEvent) -> bool:
        """Return whether a statement can change a captured table: its text names one."""
        return any(name in event.statement for name in self._names())

    def _refuse_statement(self, event: QueryEvent) -> None:
        raise BinlogError(
            f"the binary log has a change as a statement instead of rows at {self._at(event)}: "
            f"{event.statement[:60]!r}",
            hint="This change can't be captured. Let no session set binlog_format, and run: "
            "tidemill source restart NAME --resnapshot",
        )

    # --- rows ------------------------------------------------------------------------------------

    def _add_rows(self, event: RowsEvent) -> None:
        group = self._group
        if group is None:
            raise BinlogError(
                f"the binary log has rows outside of a transaction at {self._at(event)}"
            )
        group.events += 1
        if group.events <= group.skip:
            return
        shape = self._shapes.get(event.table_id)
        if shape is None:
            self._shapes.settle(event.table_id)
            return
        if group.is_xa:
            # It is committed or rolled back by a later group, perhaps days later.
            raise BinlogError(
                f"an XA transaction changes {shape.table.id} at {self._at(event)}; XA is not "
                "supported",
                hint="Use ordinary transactions for captured tables, or exclude the table.",
            )
        if shape.is_new:
            shape.is_new = False
            self._schemas.append(shape.table)
            if shape.is_altered:
                # The rows that are there have got new columns or types, without an event.
                self._resync[shape.table.id] = "its columns changed"
        for change in decode_rows(event, shape, self._transaction(group)):
            self._changes.append(change)
        self._shapes.settle(event.table_id)

    def _transaction(self, group: _Group) -> Transaction:
        return Transaction(group.begin.gtid, self._file, group.begin.committed_ms)

    def _truncation(self, event: Event, table: Table) -> Change:
        begin = self._group.begin if self._group is not None else None
        gtid = begin.gtid if begin is not None else None
        ts_ms = (begin.committed_ms if begin is not None else 0) or event.timestamp_s * 1000
        source = {
            "gtid": gtid,
            "server_id": event.server_id,
            "file": self._file,
            "pos": event.end_position,
            "row": 0,
        }
        return Change(table, "t", None, None, ts_ms, source, gtid)

    def _at(self, event: Event) -> str:
        return f"{self._file or 'the current file'}, position {event.end_position}"
