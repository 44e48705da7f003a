"""Rows that can't be captured: too large, not decodable, or refused by the broker.

The policy of the source decides: the worker stops and names the row, or the row goes to the
dead-letter topic ``<prefix>.dlq`` in the transaction of its position, and all others are captured.
The table's topic gets a delete of the row's key, so that an old row is not taken for the present
one; the next change that can be captured creates it again.

An ordinary worker writes whole batches, of which it can't say which row fails. So after a failure
it starts again from the stored position, and writes row by row (``CAREFUL``): it compares each
record with the limits of its topic. If a broker refuses one all the same, the next attempt waits
for the acknowledgement of each record (``ALONE``), and the one after that knows the row.

Must not know: a database, or the loop of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import orjson
import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.errors import MAX_RECORD_BYTES, RecordRefusedError, RecordTooLargeError
from tidemill.connect.base.producer import Producer, batch_bytes
from tidemill.connect.cdc.contract import Change, Row
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.envelope import Encoder, Record
from tidemill.connect.cdc.errors import BadRow, RowError, UndecodableRowError
from tidemill.connect.cdc.state import WorkerState
from tidemill.connect.cdc.topics import dead_letter_topic
from tidemill.errors import TidemillError

ROW_ERRORS = (UndecodableRowError, RecordTooLargeError, RecordRefusedError)
"""Errors behind which can be a single row."""
CALM_S = 60.0
"""So long after its last bad row a worker writes whole batches again."""
CAREFUL_BATCH_BYTES = 16_000
"""Most bytes of a batch of a careful worker, unless one record is larger."""
_SHOWN_BYTES, _MOST_SHOWN_BYTES = 8 << 10, 256 << 10
"""Most bytes of a value in a dead letter, and of all values together."""

log = structlog.get_logger("tidemill.cdc")

Block = Row | None


class Level(IntEnum):
    """The care with which a worker writes."""

    FAST = 0
    CAREFUL = 1
    ALONE = 2


@dataclass(slots=True)
class Care:
    """The knowledge of rows that failed, from one attempt of a worker to the next.

    Attributes:
        level: how the next attempt writes.
        refused: why records are refused, by row and number of the record.
        sending: the record that is on its way alone.
        since: when the last row failed, on the monotonic clock.
    """

    level: Level = Level.FAST
    refused: dict[str, str] = field(default_factory=dict)
    sending: str = ""
    since: float = field(default_factory=time.monotonic)

    def learn(self, error: TidemillError) -> bool:
        """Prepare the next attempt after an error. Return whether it can get further."""
        self.since = time.monotonic()
        if self.level < Level.ALONE:
            self.level = Level(self.level + 1)
            return True
        if not self.sending or self.sending in self.refused:
            return False
        self.refused[self.sending] = str(error)
        self.sending = ""
        return True

    def is_calm(self) -> bool:
        """Return whether whole batches can be written again."""
        return self.level > Level.FAST and time.monotonic() - self.since > CALM_S


class Limits:
    """The limits of topics for one record, asked when a topic is first used."""

    def __init__(self, kafka: Kafka, client: str) -> None:
        self._kafka = kafka
        self._client = client
        self._configs: dict[str, Mapping[str, str]] = {}

    def reason(self, record: Record, producer: Producer) -> str | None:
        """Return why a topic would refuse a record; None if it takes it or it is not known."""
        configs = self._configs.get(record.topic)
        if configs is None:
            configs = self._configs[record.topic] = self._ask(record.topic)
        most = int(configs.get("max.message.bytes", MAX_RECORD_BYTES))
        size = batch_bytes(producer, most, record.key, record.value)
        if size > most:
            return (
                f"it has {size:,} bytes, and topic {record.topic} takes at most {most:,} "
                "(max.message.bytes)"
            )
        return self._time_reason(record, configs)

    def _time_reason(self, record: Record, configs: Mapping[str, str]) -> str | None:
        if configs.get("message.timestamp.type") != "CreateTime":
            return None
        late_ms = time.time_ns() // 1_000_000 - record.ts_ms
        before = int(configs.get("message.timestamp.before.max.ms", 2**63 - 1))
        after = int(configs.get("message.timestamp.after.max.ms", 2**63 - 1))
        if -after <= late_ms <= before:
            return None
        name = "before" if late_ms > before else "after"
        return f"its time is refused by topic {record.topic} (message.timestamp.{name}.max.ms)"

    def _ask(self, topic: str) -> Mapping[str, str]:
        try:
            return self._kafka.topic_configs(self._client, topic)
        except TidemillError as error:  # without the right to describe configs, a broker refuses
            log.warning("source.limits_unknown", topic=topic, error=str(error))
            return {}


class CarefulWriter:
    """Writes row by row, and puts bad rows aside by the policy of the source.

    Args:
        create_table: creates the topic of a table if it is missing.
        create_letters: creates the dead-letter topic if it is missing.
    """

    def __init__(
        self,
        care: Care,
        limits: Limits,
        definition: Definition,
        producer: Producer,
        encoder: Encoder,
        state: WorkerState,
        create_table: Callable[[str], None],
        create_letters: Callable[[str], None],
    ) -> None:
        self._care = care
        self._limits = limits
        self._definition = definition
        self._producer = producer
        self._encoder = encoder
        self._state = state
        self._create_table = create_table
        self._create_letters = create_letters
        self._written: list[BadRow] = []
        self._topic = dead_letter_topic(definition.topic_prefix)

    def write(self, change: Change, snapshot: str, transaction: Block) -> int:
        """Write the records of a change, or its dead letter. Return the number of records.

        Raises:
            RowError: the policy is to stop, and the row was not accepted as a dead letter.
        """
        try:
            records = self._encoder.encode(change, snapshot=snapshot, transaction=transaction)
        except (TypeError, ValueError, KeyError) as error:
            if change.error is None:
                change.error = f"it can't be encoded: {error}"
            return self._set_aside(change, None, change.error, snapshot, transaction)
        written = 0
        for number, record in enumerate(records):
            self._create_table(record.topic)
            if change.error is not None and change.op != "d" and record is records[-1]:
                reason: str | None = change.error
            else:
                reason = self._send(change, number, record, snapshot)
            if reason is None:
                written += 1
            elif record.value is not None and self._is_delete(change, records, number):
                written += self._delete(change, record, snapshot, transaction)
            else:
                written += self._instead(change, record, reason, snapshot, transaction)
        return written

    def write_event(
        self, change: Change, record: Record | None, headers: list[tuple[str, bytes]]
    ) -> int:
        """Write an event of the outbox, or its dead letter. Return the number of records.

        Args:
            record: the event; None if the row can't be decoded.
        """
        if record is None:
            reason: str | None = change.error
        else:
            reason = self._send(change, 0, record, "false", headers)
        if reason is not None:
            self._letter(change, record, reason, "false")
        return 1

    def _is_delete(self, change: Change, records: list[Record], number: int) -> bool:
        """Return whether a record is a delete, of the row or of the key that it had before."""
        return change.op == "d" or (number == 0 and len(records) > 1)

    def _send(
        self,
        change: Change,
        number: int,
        record: Record,
        snapshot: str,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> str | None:
        """Send a record, and return why it can't be sent."""
        care = self._care
        mark = ""
        if care.level is Level.ALONE or care.refused:
            mark = f"{self._row(change, record, '', snapshot).id}/{number}"
        reason = care.refused.get(mark) or self._limits.reason(record, self._producer)
        if reason is not None:
            return reason
        try:
            self._producer.send(*record, headers or ())
        except RecordTooLargeError as error:
            return str(error)
        if care.level is Level.ALONE:
            care.sending = mark
            self._producer.flush()
            care.sending = ""
        return None

    def _instead(
        self, change: Change, record: Record, reason: str, snapshot: str, transaction: Block
    ) -> int:
        """Write a row that can't be written as it is."""
        is_decoded = change.error is None and record.value is not None
        if change.op == "u" and change.before is not None and is_decoded:
            # Two large rows: the new one alone can fit.
            smaller = replace(change, before=None)
            (after,) = self._encoder.encode(smaller, snapshot=snapshot, transaction=transaction)
            if len(after.value or b"") < len(record.value or b"") and not self._send(
                change, 9, after, snapshot
            ):
                return 1
        return self._set_aside(change, record, reason, snapshot, transaction)

    def _set_aside(
        self,
        change: Change,
        record: Record | None,
        reason: str,
        snapshot: str,
        transaction: Block,
    ) -> int:
        """Write the dead letter of a row, and the delete of its key."""
        self._letter(change, record, reason, snapshot)
        if record is None or record.key is None:
            return 1
        return 1 + self._delete(change, record, snapshot, transaction)

    def _delete(self, change: Change, record: Record, snapshot: str, transaction: Block) -> int:
        """Write a delete that has only the key."""
        table = change.table
        if table is None or record.key is None:
            return 0
        now = time.time_ns() // 1_000_000
        small = Change(table, "d", orjson.loads(record.key), None, now, change.source)
        records = self._encoder.encode(small, snapshot=snapshot, transaction=transaction)
        if any(self._limits.reason(each, self._producer) for each in records):
            return 0  # a key of this size was never in the topic
        for each in records:
            self._producer.send(*each)
        return len(records)

    def _letter(self, change: Change, record: Record | None, reason: str, snapshot: str) -> None:
        row = self._row(change, record, reason, snapshot)
        if self._definition.on_bad_row == "stop" and row.id not in self._state.accepted:
            raise RowError(row, self._topic)
        self._care.since = time.monotonic()
        self._state.dead_letters += 1
        self._create_letters(self._topic)
        value, omitted = _letter_value(change, row)
        headers: list[tuple[str, bytes]] = [
            ("error.reason", reason.encode()),
            ("source.name", self._definition.name.encode()),
            ("source.table", row.table.encode()),
            ("source.topic", row.topic.encode()),
            ("source.position", orjson.dumps(row.position)),
            ("omitted.columns", ",".join(omitted).encode()),
        ]
        key = None if record is None or len(record.key or b"") > _MOST_SHOWN_BYTES else record.key
        self._producer.send(self._topic, key, value, change.ts_ms, headers)
        self._written.append(row)

    def report(self) -> None:
        """Log the dead letters that were committed."""
        for row in self._written:
            log.warning(
                "source.dead_letter",
                source=self._definition.name,
                table=row.table,
                key=row.key,
                position=row.position,
                reason=row.reason,
                topic=self._topic,
            )
        self._written.clear()

    def _row(self, change: Change, record: Record | None, reason: str, snapshot: str) -> BadRow:
        table = change.table
        position = {"snapshot": True} if snapshot == "true" else dict(change.source)
        topic = record.topic if record is not None else ""
        if not topic and table is not None:
            topic = self._encoder.topic(table)
        key = "" if record is None else (record.key or b"").decode("utf-8", "replace")
        return BadRow("" if table is None else table.id, topic, key, position, reason)


def _letter_value(change: Change, row: BadRow) -> tuple[bytes, list[str]]:
    """Return the value of a dead letter, and the columns whose values it lacks."""
    left, omitted = _MOST_SHOWN_BYTES, set[str]()
    rows: dict[str, Any] = {}
    for name in ("after", "before"):
        values: Row | None = getattr(change, name)
        shown: Row = {}
        for column, value in (values or {}).items():
            try:
                size = len(orjson.dumps(value))
            except TypeError:
                size = left + 1
            if size > min(_SHOWN_BYTES, left):
                omitted.add(column)
                continue
            left -= size
            shown[column] = value
        rows[name] = None if values is None else shown
    value = {
        "before": rows["before"],
        "after": rows["after"],
        "op": change.op,
        "ts_ms": change.ts_ms,
        "source": {"table": row.table, **row.position},
        "reason": row.reason,
    }
    return orjson.dumps(value), sorted(omitted)
