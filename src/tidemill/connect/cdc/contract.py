"""The contract between the worker of change data capture and a source (a database).

A source delivers tables, batches of committed changes with a position after each, and chunks of
rows for snapshots. Must not know: Kafka, or a particular database.

Values in ``Change`` and ``Chunk`` are JSON values that follow the rules of
``tidemill.connect.cdc.values``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from tidemill.connect.cdc.values import Kind

Position = dict[str, int | str]
"""A place in the stream of changes, as a JSON object. Only its source understands it. It names the
database's identity (file, slot, server), so that a position is never used on another one."""

Row = dict[str, Any]
"""Column name to value."""

Operation = Literal["r", "c", "u", "d", "t", "m"]
"""Debezium's letters: read by a snapshot, create, update, delete, truncate, logical message."""

NO_KEY = "it has no primary key"
"""Why most tables are left out."""

Severity = Literal["error", "warning", "note"]
Keyless = Literal["refuse", "all-columns", "skip"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a captured table.

    Attributes:
        name: its name, as the database spells it.
        type_name: the database's type, e.g. ``numeric(10,2)``.
        kind: the neutral kind, which decides the form of its values.
        nullable: whether it can be NULL.
    """

    name: str
    type_name: str
    kind: Kind
    nullable: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """A captured table. Two objects are the same table if their ``id`` is equal.

    A source uses one object for all changes until the table's shape changes: the encoder caches
    what it prepares for a table by the identity of this object.

    Attributes:
        key: names of the primary key's columns, in the key's order; empty if there is none.
    """

    database: str
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def id(self) -> str:
        """``schema.name``, the table's name in definitions, topics and statuses."""
        return f"{self.schema}.{self.name}"

    def looks_like(self, other: Table | None) -> bool:
        """Return whether another object describes the same table with the same columns and key."""
        return other is not None and (
            (self.database, self.schema, self.name, self.columns, self.key)
            == (other.database, other.schema, other.name, other.columns, other.key)
        )


@dataclass(slots=True)
class Change:
    """One committed change.

    An update whose key differs between ``before`` and ``after`` is a change of the key. Then
    ``before`` has at least the columns of the old key.

    Attributes:
        table: the table; None for a logical message.
        op: what happened.
        before: the row before the change, for "u" and "d". It has at least the key's columns; with
            "u" it can be None if the key did not change and the database does not deliver it.
        after: the row after it, for "r", "c" and "u". A column that is missing has a value that the
            change did not touch and that the source could not find out (PostgreSQL's TOAST).
            For "m": ``{"prefix": str, "content": base64}``.
        ts_ms: time of the commit, in milliseconds since the epoch.
        source: what the envelope's ``source`` block says in addition (lsn, txId, change_id, ...).
        transaction: the transaction's id, unique in the source; None if the database has none.
        error: why values of the row can't be decoded. ``before`` and ``after`` lack them.
    """

    table: Table | None
    op: Operation
    before: Row | None
    after: Row | None
    ts_ms: int
    source: dict[str, Any]
    transaction: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction whose changes this batch, or this and earlier ones, contain."""

    id: str
    ts_ms: int


@dataclass(slots=True)
class Batch:
    """Changes in commit order, and the position after them.

    A large transaction can come in several batches. A batch without changes only moves the
    position (a heartbeat of the database).

    Attributes:
        changes: the changes; ``packed.Changes`` if some are not unpacked yet.
        position: resume here. All of ``changes`` is at or before it.
        ended: transactions that end in this batch, in commit order.
        schemas: tables whose columns are different from here on, or that are new.
        resync: ids of tables of which changes before this place were possibly not captured (the
            table was dropped and created again, or a column was added before the triggers knew it),
            or that were truncated. The worker reads these tables again, and deletes from the topic
            the keys that are not in the table any more.
        reasons: why tables in ``resync`` are read again, by id, for the log and the status.
        notes: what the source must know again after a restart (e.g. the columns of a table), by
            name; None removes one. They are stored in the transaction of the position.
            ``Capture.notes`` gives all of them to the next source.
    """

    changes: Sequence[Change]
    position: Position
    ended: list[TransactionEnd] = field(default_factory=list)
    schemas: list[Table] = field(default_factory=list)
    resync: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a table, in key order.

    The rows contain at least all that ``poll`` had returned before the call, and at most what was
    committed up to ``high``.

    Attributes:
        rows: the rows; ``packed.PackedRows`` if they are not unpacked yet.
        last_key: JSON values of the last row's key, for the next call; None at the table's end.
        high: the stream position up to which the rows can contain changes.
        ts_ms: time of the read, in milliseconds since the epoch.
        source: what the envelopes' ``source`` block says of these rows (lsn, change_id).
    """

    rows: Sequence[Row]
    last_key: list[Any] | None
    high: Position
    ts_ms: int
    source: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsistentRead:
    """All rows of some tables as of one position.

    Attributes:
        position: the next ``poll`` returns the changes after it, and the rows are as of it.
        rows: parts of the tables' rows. Read it to its end, or leave the context.
        ts_ms: time of the read, in milliseconds since the epoch.
        source: what the envelopes' ``source`` block says of these rows.
    """

    position: Position
    rows: Iterator[tuple[Table, list[Row]]]
    ts_ms: int
    source: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that ``check`` found.

    Attributes:
        severity: "error" prevents capture, "warning" can lose or delay something, "note" informs.
        text: what is missing or unusual.
        fix: the statement or command that changes it, or an empty string.
    """

    severity: Severity
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance of the confirmed position from the database. None where it is unknown.

    Attributes:
        bytes: bytes of the database's log that are held back.
        ms: age of the oldest change that is not confirmed, in milliseconds; 0 if there is none.
        changes: number of changes that are not confirmed.
    """

    bytes: int | None = None
    ms: int | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """The arguments that a source is made from.

    Attributes:
        name: the source's name. Objects in the database (slot, publication, triggers) contain it.
        include: patterns of ``schema.table`` with ``*`` and ``?``; a pattern without a dot is a
            table's name in any schema.
        exclude: patterns of tables to leave out.
        keyless: what happens to a table without a primary key. With "all-columns" the source must
            deliver all columns in ``before``.
        database: the ``[database]`` section of the definition, with secrets resolved. Only the
            source knows its keys, and rejects unknown ones with a DefinitionError.
        notes: what earlier sources of this name have stored with ``Batch.notes``.
    """

    name: str
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    keyless: Keyless = "refuse"
    database: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def selects(self, schema: str, table: str) -> bool:
        """Return whether the patterns select this table."""
        return _matches(self.include, schema, table) and not _matches(self.exclude, schema, table)


def _matches(patterns: Sequence[str], schema: str, table: str) -> bool:
    return any(
        fnmatchcase(f"{schema}.{table}" if "." in pattern else table, pattern)
        for pattern in patterns
    )


class Source(Protocol):
    """A database that delivers its changes. One thread uses it.

    All methods raise ``SourceUnavailableError`` if the database does not answer, ``SetupError`` if
    it lacks something, and ``PermanentCaptureError`` if what it delivers can't be decoded.
    """

    def check(self) -> list[Finding]:
        """Find what the database lacks, without changing anything. Callable before ``start``."""
        ...

    def tables(self) -> list[Table]:
        """Return the captured tables as they are now. Callable before ``start``."""
        ...

    def left_out(self) -> Mapping[str, str]:
        """Return why tables that the patterns select are not captured, by their ids.

        It is asked from time to time while the source runs.
        """
        ...

    def find_table(self, schema: str, name: str) -> Table | None:
        """Return a captured table as it is now, or None if it is not there or not captured."""
        ...

    def start(self, position: Position | None) -> Position:
        """Create or verify what capture needs (slot, triggers), and go to a position.

        Args:
            position: the last stored position; None: start from now.

        Returns:
            The position from which ``poll`` continues.

        Raises:
            PositionLostError: changes after the position are not there any more.
        """
        ...

    def poll(self, timeout_s: float) -> Batch | None:
        """Return the next changes in commit order, or None if there are none within the time."""
        ...

    def confirm(self, position: Position) -> None:
        """Take note that Kafka holds everything up to here durably.

        The slot can move, rows of the change log can be removed. It is called often, and can delay
        the work.
        """
        ...

    def reached(self, position: Position, goal: Position) -> bool:
        """Return whether ``position`` is at or after ``goal``."""
        ...

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        """Return the rows after a key, in the order of the keys. ``Chunk`` says what it promises.

        Args:
            table: a table with a key, as ``find_table`` has just returned it.
            after: ``last_key`` of the chunk before; None: from the beginning.
            limit: the largest number of rows.
        """
        ...

    def read_consistent(self, tables: Sequence[Table]) -> AbstractContextManager[ConsistentRead]:
        """Read tables as of one position. Called right after ``start(None)``, before ``poll``.

        The worker uses it for tables without a key. The context ends the read.
        """
        ...

    def estimate(self, table: Table) -> int:
        """Return about how many rows a table has, for progress bars."""
        ...

    def lag(self) -> Lag:
        """Return how far the confirmed position is behind."""
        ...

    def drop(self) -> None:
        """Remove what ``start`` has created in the database. It is safe to call it twice."""
        ...

    def close(self) -> None:
        """Close the connections. Nothing is removed."""
        ...
