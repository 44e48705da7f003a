"""Write changes and the worker's state into Kafka transactions.

A change passes the table's rules and the outbox router, gets its transaction block, and is encoded.
Topics are created before the first record. Must not know: a database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.producer import Producer, record_too_large
from tidemill.connect.cdc.bad_rows import Care, CarefulWriter, Level, Limits
from tidemill.connect.cdc.contract import Batch, Change, Chunk, ConsistentRead, Row, Table
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.envelope import Encoder, Record, source_tail
from tidemill.connect.cdc.errors import DefinitionError, UndecodableRowError
from tidemill.connect.cdc.packed import Changes, ColumnRule, PackedChanges, PackedRows
from tidemill.connect.cdc.routing import Event, OutboxRouter, Rules, TransactionCounter
from tidemill.connect.cdc.state import KEY, WorkerState, note_key
from tidemill.connect.cdc.topics import (
    EVENT_CONFIG,
    STATE_CONFIG,
    TABLE_CONFIG,
    state_topic,
    transactional_id,
)
from tidemill.kafka_client.producing.transactional import TransactionalProducer
from tidemill.native import extension


class CompiledEncoders:
    """Gives the encoders of tables, and keeps them (``Encoders``).

    Args:
        producer: takes the records.
        envelope: knows what the envelopes of a table have in common.
        create: creates a topic if it is missing.
    """

    def __init__(
        self, producer: TransactionalProducer, envelope: Encoder, create: Callable[[str], None]
    ) -> None:
        self._producer = producer
        self._envelope = envelope
        self._create = create
        self._known: dict[tuple[int, tuple[ColumnRule, ...]], tuple[Table, Any]] = {}

    def begin(self) -> None:
        """Begin a transaction if none is open. Call it before an encoder is used."""
        self._producer.begin()

    def of(self, table: Table, columns: tuple[ColumnRule, ...]) -> Any:
        """Return the encoder of a table whose rows have these columns."""
        found = self._known.get((id(table), columns))
        if found is None:
            found = (table, self._make(table, columns))
            self._known[id(table), columns] = found  # it keeps the table: the id is not reused
        return found[1]

    def _make(self, table: Table, columns: tuple[ColumnRule, ...]) -> Any:
        known = self._envelope.prepared(table)
        self._create(known.topic)
        names = [name for name, _, _, _ in columns]
        return extension.ChangeEncoder(
            self._producer.encoder(known.topic),
            tuple(
                (orjson.dumps(name) + b":", rule, convert, is_key)
                for name, rule, convert, is_key in columns
            ),
            tuple(names.index(name) for name in known.key),
            known.source[:-1],
            self._envelope.is_plain,
            orjson.dumps,
        )


class Writer:
    """Writes one source's changes. Records become visible with ``commit``, with the state.

    Args:
        state: the worker's state, which ``commit`` stores.
        care: what earlier attempts have found out about rows that can't be captured.
    """

    def __init__(
        self,
        kafka: Kafka,
        producer: Producer,
        definition: Definition,
        state: WorkerState,
        care: Care | None = None,
    ) -> None:
        self._kafka = kafka
        self._producer = producer
        self._definition = definition
        self._state = state
        self._client = transactional_id(definition.name)
        self._state_topic = state_topic(definition.name)
        self._encoder = Encoder(
            definition.kind, definition.topic_prefix, plain=definition.format == "plain"
        )
        self._rules = Rules(definition)
        self._outbox = OutboxRouter(definition.outbox) if definition.outbox else None
        self._transactions = (
            TransactionCounter(definition.topic_prefix, state) if definition.transactions else None
        )
        is_fast = care is None or care.level is Level.FAST
        self._is_plain_stream = is_fast and not (
            definition.table or definition.outbox or definition.transactions
        )
        self._compiled: CompiledEncoders | None = None
        if self._is_plain_stream and isinstance(producer, TransactionalProducer):
            self._compiled = CompiledEncoders(producer, self._encoder, self._create_table_topic)
        self._topics: dict[str, str] = {}
        self._known: set[str] = set()
        self._careful: CarefulWriter | None = None
        if care is not None and not is_fast:
            limits = Limits(kafka, self._client)
            self._careful = CarefulWriter(
                care,
                limits,
                definition,
                producer,
                self._encoder,
                state,
                self._create_table_topic,
                self._create_event_topic,
            )
        self._rekeyed: dict[tuple[str, tuple[str, ...]], Table] = {}
        self._notes: dict[str, str | None] = {}
        self.pending = 0
        self.written = 0

    def prepare(self, tables: list[Table]) -> list[str]:
        """Create the topics of tables, and that of the state. Return those that were missing.

        Raises:
            DefinitionError: two tables have the same topic.
        """
        for table in tables:
            topic = self.topic(table)
            other = self._topics.setdefault(topic, table.id)
            if other != table.id:
                raise DefinitionError(
                    f"the tables {other} and {table.id} would have the same topic {topic}",
                    hint="Leave one of them out: exclude = [...]",
                )
        configs = {**TABLE_CONFIG, **self._definition.topic_configs}
        new: dict[str, tuple[int, Mapping[str, str]]] = {
            topic: (self._definition.partitions, configs)
            for topic in map(self.topic, tables)
            if topic not in self._known
        }
        if self._state_topic not in self._known:
            new[self._state_topic] = (1, STATE_CONFIG)
        if self._transactions is not None and self._transactions.topic not in self._known:
            new[self._transactions.topic] = (1, EVENT_CONFIG)
        return self._create(new)

    def topic(self, table: Table) -> str:
        """Return the topic of a table."""
        return self._encoder.topic(table)

    def key_of(self, table: Table, row: Row) -> bytes:
        """Return the key of a row, as it is in the topic."""
        return self._encoder.key_of(*self._rules.key_row(table, row))

    def selects(self, table: Table, row: Row) -> bool:
        """Return whether the rules of a table let a row be in its topic."""
        return self._rules.selects(table, row)

    def write(self, batch: Batch) -> None:
        """Add the changes of a batch to the transaction."""
        self._encoder.tick()
        self._notes |= batch.notes
        if self._is_plain_stream:
            self._write_parts(batch.changes)
            self._producer.post()
            self._state.position = batch.position
            return
        ended = {each.id: each.ts_ms for each in batch.ended}
        for change in batch.changes:
            if self._transactions is not None and change.transaction is not None:
                for record in self._transactions.begin(change, ended):
                    self._producer.send(*record)
            self._write(change, "false")
        if self._transactions is not None:
            for number, ts_ms in ended.items():
                for record in self._transactions.end(number, ts_ms):
                    self._producer.send(*record)
        self._producer.post()
        self._state.position = batch.position

    def _write_parts(self, changes: Sequence[Change]) -> None:
        """Add changes, those that are packed without unpacking them."""
        if self._compiled is None or not isinstance(changes, Changes):
            self._write_all(changes)
            return
        for part in changes.parts:
            if isinstance(part, list):
                self._write_all(part)
            else:
                self._write_packed(part, self._compiled)

    def _write_packed(self, part: PackedChanges, encoders: CompiledEncoders) -> None:
        encoders.begin()
        try:
            self.pending += part.encode(encoders, self._encoder.stamp_ms)
        except OverflowError as error:
            topics = " or ".join(sorted({self.topic(table) for table in part.tables()}))
            raise record_too_large(topics, int(str(error))) from error

    def _write_all(self, changes: Iterable[Change]) -> None:
        """Add changes that no rule, router or counter has to see."""
        encode, send, known, sent = self._encoder.encode, self._producer.send, self._known, 0
        for change in changes:
            if change.error is not None:
                raise UndecodableRowError(change.error)
            for topic, key, value, ts_ms in encode(change):
                if topic not in known:
                    self._create({topic: (self._definition.partitions, TABLE_CONFIG)})
                send(topic, key, value, ts_ms)
                sent += 1
        self.pending += sent

    def write_rows(self, table: Table, rows: Sequence[Row], read: Chunk | ConsistentRead) -> None:
        """Add rows of a snapshot to the transaction."""
        self._encoder.tick()
        if isinstance(rows, PackedRows) and rows.is_packed and self._compiled is not None:
            self._compiled.begin()
            tail = source_tail(read.source)
            try:
                self.pending += rows.encode(
                    self._compiled, table, read.ts_ms, tail, self._encoder.stamp_ms
                )
            except OverflowError as error:
                raise record_too_large(self.topic(table), int(str(error))) from error
            self._producer.post()
            return
        for row in rows:
            self._write(Change(table, "r", None, row, read.ts_ms, dict(read.source)), "true")
        self._producer.post()

    def delete_key(self, table: Table, key: bytes, row: Row) -> None:
        """Add the delete of a key that the table does not have any more.

        Args:
            table: the table as it is now.
            row: the values of the key. It can be of an earlier primary key.
        """
        if row.keys() != set(table.key):
            table = self._with_key(table, tuple(row))
        change = Change(table, "d", row, None, time.time_ns() // 1_000_000, {})
        for record in self._encoder.encode(change, snapshot="true"):
            self._send_to_known(record.topic, key, record.value, record.ts_ms)

    def _with_key(self, table: Table, key: tuple[str, ...]) -> Table:
        """Return a table with another key. It is one object: encoders are cached by the object."""
        found = self._rekeyed.get((table.id, key))
        if found is None:
            found = self._rekeyed[table.id, key] = replace(table, key=key)
        return found

    def commit(self) -> None:
        """Store the state, and commit. When it returns, everything is durable and visible."""
        for name, note in self._notes.items():
            value = None if note is None else note.encode()
            self._producer.send(self._state_topic, note_key(name), value)
        self._producer.send(self._state_topic, KEY, self._state.encode())
        self._producer.commit()
        self._notes.clear()
        if self._careful is not None:
            self._careful.report()
        self.written += self.pending
        self.pending = 0

    def _write(self, change: Change, snapshot: str) -> None:
        table = change.table
        if change.error is not None and self._careful is None:
            raise UndecodableRowError(change.error)
        if table is not None and self._outbox is not None and self._outbox.takes(table):
            if change.error is not None and self._careful is not None:
                self.pending += self._careful.write_event(change, None, [])
                return
            event = self._outbox.route(change)
            if event is not None:
                if event.topic not in self._known:
                    self._create({event.topic: (self._definition.partitions, EVENT_CONFIG)})
                self._send_event(change, event)
            return
        kept = self._rules.apply(change)
        if kept is None:
            return
        block = None
        if self._transactions is not None and change.transaction is not None:
            block = self._transactions.count(change)
        if self._careful is not None:
            self.pending += self._careful.write(kept, snapshot, block)
            return
        send = self._producer.send
        for topic, key, value, ts_ms in self._encoder.encode(
            kept, snapshot=snapshot, transaction=block
        ):
            self._create_table_topic(topic)
            send(topic, key, value, ts_ms)
            self.pending += 1

    def _send_event(self, change: Change, event: Event) -> None:
        """Add an event of the outbox to the transaction."""
        if self._careful is not None:
            record = Record(event.topic, event.key, event.value, event.ts_ms)
            self.pending += self._careful.write_event(change, record, event.headers)
            return
        self._producer.send(event.topic, event.key, event.value, event.ts_ms, event.headers)
        self.pending += 1

    def _send_to_known(self, topic: str, key: bytes, value: bytes | None, ts_ms: int) -> None:
        self._producer.send(topic, key, value, ts_ms)
        self.pending += 1

    def _create_table_topic(self, topic: str) -> None:
        if topic not in self._known:
            self._create({topic: (self._definition.partitions, TABLE_CONFIG)})

    def _create_event_topic(self, topic: str) -> None:
        if topic not in self._known:
            self._create({topic: (1, EVENT_CONFIG)})

    def _create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> list[str]:
        if not topics:
            return []
        created = self._kafka.create_topics(self._client, topics)
        self._known.update(topics)
        return created
