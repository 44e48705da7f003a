"""Turn changes into the keys and values of Kafka records: Debezium's envelope, or plain rows.

Source of the format: Debezium's documentation of the PostgreSQL connector, "Data change events".
The key is a JSON object of the primary key. A delete is followed by a tombstone. A change of the
key is a delete and a tombstone of the old key, and a create of the new one. Must not know: a
database, or how records are sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from tidemill import __version__
from tidemill.connect.cdc.contract import Change, Row, Table
from tidemill.connect.cdc.values import UNAVAILABLE

MESSAGE_TOPIC = "message"
"""Logical messages go to ``<prefix>.message``, as in Debezium."""

_DEBEZIUM_NAMES = {"postgres": "postgresql"}
"""Kinds of sources that Debezium names differently in ``source.connector``."""

_dumps = orjson.dumps


class Record(NamedTuple):
    """A Kafka record to write. A value of None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    ts_ms: int


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """The parts of a table's envelopes that never change."""

    table: Table
    topic: str
    key: tuple[str, ...]
    source: bytes
    columns: tuple[str, ...]
    templates: dict[tuple[str, str], bytes]


class Encoder:
    """Encodes the changes of one source.

    Args:
        connector: the kind of the source, e.g. "sqlite".
        prefix: the first part of all topic names, and ``source.name``.
        plain: values are the rows after the change, without an envelope.
        now_ms: returns the time of processing for ``ts_ms``.

    Attributes:
        is_plain: whether values are rows without an envelope.
    """

    def __init__(
        self,
        connector: str,
        prefix: str,
        *,
        plain: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._connector = _DEBEZIUM_NAMES.get(connector, connector)
        self._prefix = prefix
        self.is_plain = plain
        self._now_ms = now_ms
        self._stamp = now_ms()
        self._tables: dict[int, EncodedTable] = {}

    @property
    def stamp_ms(self) -> int:
        """The time of processing in the envelopes, taken by the last ``tick``."""
        return self._stamp

    def tick(self) -> None:
        """Take the present time for the envelopes from here on. Call it for each batch."""
        self._stamp = self._now_ms()

    def topic(self, table: Table) -> str:
        """Return ``<prefix>.<schema>.<table>``, with "_" for what a topic name can't have."""
        return topic_name(self._prefix, table.schema, table.name)

    def encode(
        self, change: Change, *, snapshot: str = "false", transaction: Row | None = None
    ) -> list[Record]:
        """Return the records of a change, in the order in which they must be written.

        A truncate has none: the worker deletes the keys one by one, because a compacted topic
        takes no record without a key.

        Args:
            snapshot: the envelope's ``source.snapshot``.
            transaction: the envelope's ``transaction`` block: id, total_order,
                data_collection_order.
        """
        table = change.table
        if table is None:
            return [self._message(change)]
        known = self.prepared(table)
        op, after, before = change.op, change.after, change.before
        if op == "d":
            return self._delete(known, change, before or {}, snapshot, transaction)
        if after is None:
            return []
        key = _key(known, after)
        records: list[Record] = []
        if op == "u" and before is not None:
            old = _key(known, before)
            if old != key:
                records = self._delete(known, change, before, snapshot, transaction)
                op, before = "c", None
        if len(after) != len(known.columns):
            after = {name: after.get(name, UNAVAILABLE) for name in known.columns}
        value = (
            _dumps(after)
            if self.is_plain
            else self._envelope(known, change, op, before, after, snapshot, transaction)
        )
        records.append(Record(known.topic, key, value, change.ts_ms))
        return records

    def key_of(self, table: Table, row: Row) -> bytes:
        """Return the key of a row's records."""
        return _key(self.prepared(table), row)

    def prepared(self, table: Table) -> EncodedTable:
        """Return the parts of a table's envelopes that never change."""
        return self._tables.get(id(table)) or self._prepare(table)

    def _prepare(self, table: Table) -> EncodedTable:
        source = _dumps(
            {
                "version": __version__,
                "connector": self._connector,
                "name": self._prefix,
                "db": table.database,
                "schema": table.schema,
                "table": table.name,
            }
        )
        columns = tuple(column.name for column in table.columns)
        known = EncodedTable(table, self.topic(table), table.key or columns, source, columns, {})
        self._tables[id(table)] = known  # it keeps the table, so the id is not reused
        return known

    def _delete(
        self,
        known: EncodedTable,
        change: Change,
        before: Row,
        snapshot: str,
        transaction: Row | None,
    ) -> list[Record]:
        key = _key(known, before)
        tombstone = Record(known.topic, key, None, change.ts_ms)
        if self.is_plain:
            return [tombstone]
        value = self._envelope(known, change, "d", before, None, snapshot, transaction)
        return [Record(known.topic, key, value, change.ts_ms), tombstone]

    def _envelope(
        self,
        known: EncodedTable,
        change: Change,
        op: str,
        before: Row | None,
        after: Row | None,
        snapshot: str,
        transaction: Row | None,
    ) -> bytes:
        template = known.templates.get((op, snapshot)) or _template(known, op, snapshot)
        return template % (
            b"null" if before is None else _dumps(before),
            b"null" if after is None else _dumps(after),
            change.ts_ms,
            source_tail(change.source),
            self._stamp,
            b"null" if transaction is None else _dumps(transaction),
        )

    def _message(self, change: Change) -> Record:
        content = change.after or {}
        source = {
            "version": __version__,
            "connector": self._connector,
            "name": self._prefix,
            "ts_ms": change.ts_ms,
            **change.source,
        }
        value = {"op": "m", "ts_ms": self._stamp, "source": source, "message": content}
        key = {"prefix": content.get("prefix", "")}
        return Record(f"{self._prefix}.{MESSAGE_TOPIC}", _dumps(key), _dumps(value), change.ts_ms)


def source_tail(source: Row) -> bytes:
    """Return the end of the block ``source``: what a change or a read says in addition."""
    return b"," + _dumps(source)[1:] if source else b"}"


def topic_name(*parts: str) -> str:
    """Join parts with dots. Characters that a topic name can't have become "_"."""
    return ".".join(
        "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in part)
        for part in parts
    )


def _template(known: EncodedTable, op: str, snapshot: str) -> bytes:
    """Return an envelope with places for its values, in the format of ``%``."""
    source = known.source[:-1].replace(b"%", b"%%")
    template = (
        b'{"before":%b,"after":%b,"source":'
        + source
        + b',"snapshot":"'
        + snapshot.encode()
        + b'","ts_ms":%d%b,"op":"'
        + op.encode()
        + b'","ts_ms":%d,"transaction":%b}'
    )
    known.templates[op, snapshot] = template
    return template


def _key(known: EncodedTable, row: Row) -> bytes:
    names = known.key
    if len(names) == 1:
        return _dumps({names[0]: row[names[0]]})
    return _dumps({name: row[name] for name in names})


def decode(value: bytes) -> dict[str, Any]:
    """Return the envelope of a record's value."""
    decoded: dict[str, Any] = orjson.loads(value)
    return decoded
