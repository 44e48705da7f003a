"""Reads the records of one range of offsets into Arrow record batches with librdkafka.

This edition of ``fetch`` understands every setting of librdkafka and every message format, and
makes a Python object for each record. Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidemill.confluent.errors import LastError
from tidemill.confluent.pooling import ClientPool, make_client, raise_if_permanent
from tidemill.confluent.reading import headers_of
from tidemill.reading import failures
from tidemill.reading.plan import (
    BATCH_BYTES,
    DEFAULT_SETTINGS,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    FetchPlan,
)
from tidemill.reading.ranges import OffsetRange

# The first batch is small, because the size of the records is not known yet.
_FIRST_ROWS = 32
_GROWTH = 8
_POLL_S = 0.02

_FIXED_SETTINGS: Mapping[str, str] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
}


def fetch(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, as ``tidemill.reading.fetch.fetch`` promises it."""
    reader = _RangeReader(wanted, plan)
    try:
        yield from reader.batches()
    except GeneratorExit:
        reader.release()
        raise
    except BaseException:
        reader.abandon()
        raise
    reader.release()


@dataclass(slots=True)
class _PooledConsumer:
    consumer: Consumer
    last_error: LastError
    known_topics: set[str] = field(default_factory=set)


_pool: ClientPool[_PooledConsumer] = ClientPool(lambda pooled: pooled.consumer.close())


def close_idle_consumers() -> None:
    """Close the consumers that this process keeps for its next range."""
    _pool.clear()


class _RangeReader:
    """Reads one range once."""

    def __init__(self, wanted: OffsetRange, plan: FetchPlan) -> None:
        self._range = wanted
        self._plan = plan
        self._position = wanted.start
        self._settings = {**DEFAULT_SETTINGS, **plan.kafka, **_FIXED_SETTINGS}
        self._pooled = _pool.take(self._settings, self._connect)
        self._consumer = self._pooled.consumer
        self._deadline = 0.0

    def _connect(self) -> _PooledConsumer:
        last = LastError()
        group = {"group.id": f"{self._plan.group_id_prefix}-{uuid.uuid4()}"}
        return _PooledConsumer(make_client(Consumer, {**group, **self._settings}, last), last)

    def release(self) -> None:
        """Return the consumer to the pool."""
        self._consumer.unassign()
        _pool.give(self._settings, self._pooled)

    def abandon(self) -> None:
        """Close the consumer, which may be in an invalid state after an error."""
        _pool.drop(self._pooled)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range."""
        r, schema = self._range, SCHEMA_WITH_HEADERS if self._plan.include_headers else SCHEMA
        self._pooled.last_error.error = None
        self._learn_leaders()
        self._consumer.assign([TopicPartition(r.topic, r.partition, r.start)])
        self._progressed()
        rows = min(_FIRST_ROWS, self._plan.batch_rows)
        while self._position < r.end:
            messages = self._next(rows)
            if messages:
                batch = to_record_batch(messages, r.topic, r.partition, schema)
                fitting = BATCH_BYTES * len(messages) // max(1, batch.nbytes)
                rows = max(1, min(self._plan.batch_rows, fitting, rows * _GROWTH))
                yield batch
                self._progressed()  # do not count the time that the caller took

    def _learn_leaders(self) -> None:
        """Request the leaders of the topic.

        Without this request librdkafka takes a third of a second to learn about a new topic.
        """
        topic = self._range.topic
        if topic not in self._pooled.known_topics:
            with contextlib.suppress(KafkaException):  # a real error occurs again when it reads
                self._consumer.list_topics(topic, timeout=self._plan.timeout_ms / 1000)
                self._pooled.known_topics.add(topic)

    def _next(self, rows: int) -> list[Message]:
        """Return up to ``rows`` messages of the range; fewer only at its end."""
        taken: list[Message] = []
        while len(taken) < rows and self._position < self._range.end:
            want = min(rows - len(taken), self._range.end - self._position)
            messages = self._consumer.consume(want, _POLL_S)
            if not messages:
                self._check_deadline()
                continue
            self._progressed()
            if any(map(Message.error, messages)):
                self._take_each(messages, taken)
            else:
                self._take(messages, taken)
        return taken

    def _take(self, messages: list[Message], taken: list[Message]) -> None:
        """Append the messages below the end of the range. Only the last ones can be above it."""
        self._position = _offset(messages[-1]) + 1
        if self._position > self._range.end:
            messages = [m for m in messages if _offset(m) < self._range.end]
        taken.extend(messages)

    def _take_each(self, messages: list[Message], taken: list[Message]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self._take([message], taken)
            elif error.code() == KafkaError._PARTITION_EOF:
                # The position is the end of the log. The last offsets may have no record: markers,
                # or records that compaction removed.
                self._position = max(self._position, min(_offset(message), self._range.end))
            else:
                self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        r = self._range
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._skip_lost(error)
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            failures.deleted(r, self._position, self._plan)
            self._position = r.end
        elif error.fatal() or not error.retriable():
            raise failures.unreadable(r, self._position, error.str())

    def _skip_lost(self, error: KafkaError) -> None:
        """Continue after lost records, at the first one that exists, if it is in the range."""
        r = self._range
        first, last = self._consumer.get_watermark_offsets(
            TopicPartition(r.topic, r.partition), timeout=self._plan.timeout_ms / 1000
        )
        failures.removed(r, self._position, self._plan, first=first, last=last, cause=error.str())
        if self._position < first < r.end:
            self._position = first
            self._consumer.assign([TopicPartition(r.topic, r.partition, first)])
        else:
            self._position = r.end

    def _progressed(self) -> None:
        self._deadline = time.monotonic() + self._plan.timeout_ms / 1000

    def _check_deadline(self) -> None:
        last = self._pooled.last_error
        raise_if_permanent(last, self._settings["bootstrap.servers"])
        if time.monotonic() > self._deadline:
            raise failures.timed_out(self._range, self._position, self._plan, last.text)


_MOST_MS = (2**63 - 1) // 1000
"""Times above, and below its negative, become the nearest that microseconds express."""


def to_record_batch(
    messages: Sequence[Message], topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return messages of one partition as columns.

    Args:
        schema: ``SCHEMA`` or ``SCHEMA_WITH_HEADERS``.
    """
    # Unbound methods in ``map`` avoid a Python frame for each record.
    count = len(messages)
    stamps: list[tuple[int, int]] = list(map(Message.timestamp, messages))
    types, millis = [stamp[0] for stamp in stamps], [stamp[1] for stamp in stamps]
    within = (min(max(each, -_MOST_MS), _MOST_MS) for each in millis)
    micros = pc.multiply(pa.array(within, pa.int64(), size=count), 1000)
    columns: list[Any] = [
        pa.array(map(Message.key, messages), pa.binary(), size=count),
        pa.array(map(Message.value, messages), pa.binary(), size=count),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(map(Message.offset, messages), pa.int64(), size=count),
        micros.cast(schema.field("timestamp").type),
        # librdkafka: 0 none, 1 create, 2 append; Spark, after the Java client: -1, 0, 1.
        pc.subtract(pa.array(types, pa.int32()), pa.scalar(1, pa.int32())),
    ]
    if len(schema) > len(columns):
        columns.append(pa.array(map(_headers, messages), schema.field("headers").type, size=count))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers_of(message)] or None


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
