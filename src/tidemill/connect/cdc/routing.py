"""The way of a change into records: rules for rows, the outbox router, transaction metadata.

Source: Debezium's "Outbox Event Router" and "Transaction metadata". Must not know: Kafka's client,
or a particular database.
"""

from __future__ import annotations

import hashlib
import hmac
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tidemill import tracing
from tidemill.connect.base.secrets import Secret, resolve
from tidemill.connect.cdc.contract import Change, Row, Table
from tidemill.connect.cdc.definition import Definition, Outbox, TableRules
from tidemill.connect.cdc.envelope import Record, topic_name
from tidemill.connect.cdc.errors import DefinitionError
from tidemill.connect.cdc.state import WorkerState

_CONDITION = re.compile(
    r"\s*(?P<column>\w+|\"[^\"]+\")\s*"
    r"(?:(?P<null>is\s+(?:not\s+)?null)|(?P<operator>=|!=|<>|<=|>=|<|>)\s*"
    r"(?P<value>'(?:[^']|'')*'|-?\d+(?:\.\d+)?|true|false))\s*",
    re.IGNORECASE,
)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_SPAN_CONTEXT = "tracingspancontext"
_SPAN_LINES = 20

Condition = Callable[[Row], bool]
UNUSED_RULES = "no captured table has this name, or the outbox takes its rows"


def parse_condition(text: str) -> tuple[str, Condition]:
    """Return the column and the test of ``column operator value`` or ``column IS [NOT] NULL``.

    A comparison with NULL, or of a text with a number, does not hold.

    Raises:
        DefinitionError: the text is not a condition.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise DefinitionError(
            f"invalid condition {text!r}",
            hint="Use: column = 'text', column >= 10, column != true, column IS NOT NULL.",
        )
    column = found["column"].strip('"')
    if found["null"]:
        wanted = "not" not in found["null"].lower()
        return column, lambda row: (row.get(column) is None) is wanted
    compare, literal = _OPERATORS[found["operator"]], _literal(found["value"])

    def test(row: Row) -> bool:
        value = row.get(column)
        if isinstance(literal, float) and isinstance(value, str):
            try:
                value = float(value)  # a decimal
            except ValueError:
                return False
        if value is None or isinstance(value, str) != isinstance(literal, str):
            return False
        return compare(value, literal)

    return column, test


def _literal(text: str) -> Any:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text)


def unused_rules(definition: Definition, tables: Iterable[Table]) -> list[str]:
    """Return the tables that a definition names and whose rules have no effect.

    They are not captured, or not under this name; or the outbox router takes their rows. The rows
    of a table whose name is misspelled are written as they are.
    """
    outbox = definition.outbox
    ruled: set[str] = set()
    routed: set[str] = set()
    for table in tables:
        is_routed = outbox is not None and outbox.table in (table.id, table.name)
        (routed if is_routed else ruled).update((table.id, table.name))
    unused = [name for name in definition.table if name not in ruled]
    return [*unused, outbox.table] if outbox and outbox.table not in routed else unused


@dataclass(slots=True)
class _Prepared:
    table: Table
    rules: TableRules
    conditions: list[tuple[str, Condition]]

    def selects(self, row: Row) -> bool:
        """Return whether all conditions hold for a row."""
        return all(test(row) for _, test in self.conditions)

    def knows(self, row: Row) -> bool:
        """Return whether a row has the columns of all conditions."""
        return all(name in row for name, _ in self.conditions)


class Rules:
    """The rules of a source.

    Args:
        definition: the source. Its rules are checked when a table first appears.

    Raises:
        DefinitionError: a condition is invalid, or the key of hashes is empty.
    """

    def __init__(self, definition: Definition) -> None:
        self._rules = definition.table
        key = resolve(definition.hash_key)
        self._key = (key.reveal() if isinstance(key, Secret) else str(key)).encode()
        if not self._key and any(rules.hash for rules in self._rules.values()):
            raise DefinitionError(
                f"hash_key {definition.hash_key} is empty, so anyone could compute the hashes of "
                "known values",
                hint="Write a long random text into the variable or the file.",
            )
        self._prepared: dict[int, _Prepared | None] = {}
        for rules in self._rules.values():
            for text in rules.where:
                parse_condition(text)

    def apply(self, change: Change) -> Change | None:
        """Return the change as it is written, or None if it is left out.

        With conditions, an update into the selection is a create, and one out of it a delete. What
        can have been outside is deleted by its key only: no record has the values of a row that the
        conditions leave out.
        """
        if not self._rules or change.table is None:
            return change
        prepared = self._find(change.table)
        if prepared is None:
            return change
        op, before, after = change.op, change.before, change.after
        if prepared.conditions and change.error is None:
            is_whole = before is not None and prepared.knows(before)
            was = before is not None and is_whole and prepared.selects(before)
            now = after is not None and prepared.selects(after)
            if op in ("c", "r") and not now:
                return None
            if (op == "u" and not now) or op == "d":
                old = before if before is not None else after
                op, after = "d", None
                before = old if was else _key_of(change.table, old or {})
                if before is None:
                    return None
            elif op == "u" and is_whole and not was:
                op, before = "c", None
        return Change(
            prepared.table,
            op,
            self._row(prepared, before),
            self._row(prepared, after),
            change.ts_ms,
            change.source,
            change.transaction,
            change.error,
        )

    def selects(self, table: Table, row: Row) -> bool:
        """Return whether the conditions of a table hold for a row."""
        prepared = self._find(table) if self._rules else None
        return prepared is None or prepared.selects(row)

    def key_row(self, table: Table, row: Row) -> tuple[Table, Row]:
        """Return the table and the row as they are written, for the row's key."""
        prepared = self._find(table) if self._rules else None
        if prepared is None:
            return table, row
        return prepared.table, self._row(prepared, row) or {}

    def _find(self, table: Table) -> _Prepared | None:
        number = id(table)
        if number not in self._prepared:
            rules = self._rules.get(table.id) or self._rules.get(table.name)
            self._prepared[number] = None if rules is None else self._prepare(table, rules)
        return self._prepared[number]

    def _prepare(self, table: Table, rules: TableRules) -> _Prepared:
        names = {column.name for column in table.columns}
        conditions = [parse_condition(text) for text in rules.where]
        named = {
            *rules.exclude_columns,
            *rules.mask,
            *rules.hash,
            *(name for name, _ in conditions),
        }
        missing = sorted(named - names)
        if missing:
            raise DefinitionError(
                f"table {table.id} has no column {missing[0]}, which its rules name",
                hint=f"Columns: {', '.join(sorted(names))}.",
            )
        lost = [name for name in table.key if name in rules.exclude_columns or name in rules.mask]
        if lost:
            raise DefinitionError(
                f"column {lost[0]} is in the primary key of {table.id}: without it, rows can't be "
                "told apart",
                hint=f'Hash it instead: hash = ["{lost[0]}"]',
            )
        columns = tuple(each for each in table.columns if each.name not in rules.exclude_columns)
        shown = replace(table, columns=columns)
        return _Prepared(shown, rules, conditions)

    def _row(self, prepared: _Prepared, row: Row | None) -> Row | None:
        if row is None:
            return None
        rules = prepared.rules
        shown = {name: value for name, value in row.items() if name not in rules.exclude_columns}
        for name, text in rules.mask.items():
            if shown.get(name) is not None:
                shown[name] = text
        for name in rules.hash:
            if shown.get(name) is not None:
                value = str(shown[name]).encode()
                shown[name] = hmac.new(self._key, value, hashlib.sha256).hexdigest()
        return shown


def _key_of(table: Table, row: Row) -> Row | None:
    """Return the key of a row; None without a key, where all columns are the record's key."""
    if not table.key or not all(name in row for name in table.key):
        return None
    return {name: row[name] for name in table.key}


@dataclass(frozen=True, slots=True)
class Event:
    """A record of an aggregate's topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    ts_ms: int
    headers: list[tuple[str, bytes]]


def _trace_of(row: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Return the context of a trace in a row, as headers.

    It is in the columns traceparent and tracestate, or in that of Debezium's router,
    tracingspancontext, which has properties of Java.
    """
    texts = [(name, row.get(name)) for name in (tracing.TRACEPARENT, tracing.TRACESTATE)]
    properties = row.get(_SPAN_CONTEXT)
    if isinstance(properties, str):
        lines = (line.partition("=") for line in properties.splitlines()[:_SPAN_LINES])
        texts += [(name.strip(), value) for name, _, value in lines]
    given = [(name, value) for name, value in texts if isinstance(value, str)]
    return [(name, text.encode()) for name, text in tracing.context_in(given).items()]


class OutboxRouter:
    """Turns inserted rows of one table into events, by their aggregate type.

    Updates and deletes are left out: an application can delete a row in the same transaction.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def takes(self, table: Table) -> bool:
        """Return whether this is the outbox table."""
        return self._outbox.table in (table.id, table.name)

    def route(self, change: Change) -> Event | None:
        """Return the event of an inserted row; None for updates and deletes.

        Raises:
            DefinitionError: the table lacks a column of the outbox.
        """
        row = change.after
        if change.op not in ("c", "r") or row is None:
            return None
        outbox = self._outbox
        for column in (outbox.id, outbox.aggregate_type, outbox.aggregate_id, outbox.payload):
            if column not in row:
                raise DefinitionError(
                    f"the outbox table {outbox.table} has no column {column}",
                    hint="Name its columns under [outbox] in the definition.",
                )
        headers = [("id", _text(row[outbox.id]) or b"")]
        kind = _text(row.get(outbox.event_type))
        if kind is not None:
            headers.append(("eventType", kind))
        headers += _trace_of(row)
        topic = topic_name(outbox.topic_prefix, str(row[outbox.aggregate_type]))
        return Event(
            topic,
            _text(row[outbox.aggregate_id]),
            _text(row[outbox.payload]),
            change.ts_ms,
            headers,
        )


def _text(value: Any) -> bytes | None:
    """Return a value as bytes: a text as it is, everything else as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


class TransactionCounter:
    """Numbers the events of transactions, which come one after the other.

    The counters are part of the state, so they survive a restart inside of a large transaction.

    Args:
        prefix: of the topic ``<prefix>.transaction``.
        state: keeps the counters.
    """

    def __init__(self, prefix: str, state: WorkerState) -> None:
        self.topic = f"{prefix}.transaction"
        self._state = state

    def begin(self, change: Change, ended: Mapping[str, int]) -> Iterator[Record]:
        """Yield the BEGIN record if a change is the first one of its transaction.

        Transactions come one after the other, so the END of the one before it comes first.

        Args:
            change: the next change.
            ended: times of the transactions that end in the batch.
        """
        current = self._state.transaction
        if current is not None:
            if current["id"] == change.transaction:
                return
            yield from self.end(current["id"], ended.get(current["id"], change.ts_ms))
        self._state.transaction = {"id": change.transaction, "total": 0, "tables": {}}
        yield self._record("BEGIN", str(change.transaction), change.ts_ms, {})

    def count(self, change: Change) -> Row:
        """Return the ``transaction`` block of the next event."""
        current = self._state.transaction
        if current is None:
            current = self._state.transaction = {"id": change.transaction, "total": 0, "tables": {}}
        current["total"] += 1
        name = change.table.id if change.table is not None else ""
        tables: dict[str, int] = current["tables"]
        tables[name] = tables.get(name, 0) + 1
        return {
            "id": current["id"],
            "total_order": current["total"],
            "data_collection_order": tables[name],
        }

    def end(self, number: str, ts_ms: int) -> Iterator[Record]:
        """Yield the END record of a transaction of which events were written."""
        current = self._state.transaction
        if current is None or current["id"] != number:
            return
        self._state.transaction = None
        counts = [
            {"data_collection": name, "event_count": count}
            for name, count in current["tables"].items()
        ]
        more = {"event_count": current["total"], "data_collections": counts}
        yield self._record("END", number, ts_ms, more)

    def _record(self, status: str, number: str, ts_ms: int, more: Row) -> Record:
        value = {
            "status": status,
            "id": number,
            "ts_ms": ts_ms,
            "event_count": None,
            "data_collections": None,
            **more,
        }
        return Record(self.topic, orjson.dumps({"id": number}), orjson.dumps(value), ts_ms)
