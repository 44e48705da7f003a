"""From a Kafka broker to Arrow: the records of one range of offsets, as record batches.

All decoding stands here behind one function, ``fetch``, with a contract test
(``tests/contracts/fetch.py``): a native decoder is to replace this one. Must not know: Spark,
options' names, queries.
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

from tidemill.errors import DataLossError, RequestTimedOutError, UnreachableError
from tidemill.spark.clients import ClientPool, LastError, log, make_client
from tidemill.spark.options import noted
from tidemill.spark.ranges import OffsetRange

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""Columns of a range's records: those of Spark's Kafka source."""
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", _HEADERS))

BATCH_ROWS = 16_384
"""Most rows in a record batch: enough to make the cost per batch vanish."""
BATCH_BYTES = 16 * 1024 * 1024
"""About the most bytes in a record batch; a column of 2 GiB would overflow its offsets."""
# The first batch is small: nothing is known yet of how large the records are.
_FIRST_ROWS = 32
_GROWTH = 8
_POLL_S = 0.02

DEFAULT_SETTINGS: Mapping[str, str] = {
    "isolation.level": "read_uncommitted",  # as the Java client and thus Spark; librdkafka differs
    "check.crcs": "true",
    # A range is read only where there is something: a long poll at its end would only make the
    # next range wait for its answer.
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "50",
    "fetch.queue.backoff.ms": "5",
}
"""librdkafka settings that the user may override."""
_FIXED_SETTINGS: Mapping[str, str] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
}


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """How to read, the same for all ranges of a query.

    Attributes:
        kafka: the user's librdkafka settings.
        include_headers: add the column ``headers``.
        fail_on_data_loss: raise where records of the range are gone, else pass over them.
        timeout_ms: longest wait for anything new.
        group_id_prefix: of the consumer group id that brokers see.
    """

    kafka: Mapping[str, str]
    include_headers: bool = False
    fail_on_data_loss: bool = True
    timeout_ms: int = 120_000
    group_id_prefix: str = "tidemill-source"
    batch_rows: int = field(default=BATCH_ROWS)


def fetch(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch]:
    """Exactly the readable records with offsets in ``[start, end)``, in order.

    The range ends by position, not by count: in compacted topics and behind transaction markers
    there are fewer records than offsets.

    Yields:
        Record batches of ``SCHEMA`` (or ``SCHEMA_WITH_HEADERS``), none of them empty.

    Raises:
        DataLossError: records are gone, or the topic is, and ``fail_on_data_loss`` is set.
        UnreachableError, RequestTimedOutError: the broker did not deliver in time.
        OptionError: librdkafka does not know a setting.
    """
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


def _close(pooled: _PooledConsumer) -> None:
    pooled.consumer.close()


_pool: ClientPool[_PooledConsumer] = ClientPool(_close)


def close_idle_consumers() -> None:
    """Close the consumers that this process keeps for its next range."""
    _pool.clear()


class _RangeReader:
    """One pass over one range."""

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
        """Hand the consumer on to the next range."""
        self._consumer.unassign()
        _pool.give(self._settings, self._pooled)

    def abandon(self) -> None:
        """Close the consumer: after an error its state is not to be relied on."""
        _pool.drop(self._pooled)

    def batches(self) -> Iterator[pa.RecordBatch]:
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
                self._progressed()  # the time that the caller took is not the broker's

    def _learn_leaders(self) -> None:
        """Ask for a topic's leaders outright: left to itself, librdkafka takes a third of a second
        to learn of a topic that it was not assigned before."""
        topic = self._range.topic
        if topic not in self._pooled.known_topics:
            with contextlib.suppress(KafkaException):  # it will say so again when it reads
                self._consumer.list_topics(topic, timeout=self._plan.timeout_ms / 1000)
                self._pooled.known_topics.add(topic)

    def _next(self, rows: int) -> list[Message]:
        """Up to ``rows`` messages of the range; fewer only at its end."""
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
        """Keep what lies below the end; offsets rise, so only the tail can lie above."""
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
                # The position of the log's end. Beyond the last record there may be offsets
                # without any: markers, or records that compaction removed.
                self._position = max(self._position, min(_offset(message), self._range.end))
            else:
                self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        r = self._range
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._skip_lost(error)
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            self._lost(f"{r.topic}-{r.partition} is gone, with offsets from {self._position}")
            self._position = r.end
        elif error.fatal() or not error.retriable():
            raise UnreachableError(
                f"{r.topic}-{r.partition} can't be read at offset {self._position}: {error.str()}"
            )

    def _skip_lost(self, error: KafkaError) -> None:
        """Go on behind records that are gone: the first that is there, if the range holds it."""
        r = self._range
        first, last = self._consumer.get_watermark_offsets(
            TopicPartition(r.topic, r.partition), timeout=self._plan.timeout_ms / 1000
        )
        self._lost(
            f"{r.topic}-{r.partition} holds offsets {first} to {last}, but {self._position} to "
            f"{r.end} are to be read ({error.str()})"
        )
        if self._position < first < r.end:
            self._position = first
            self._consumer.assign([TopicPartition(r.topic, r.partition, first)])
        else:
            self._position = r.end

    def _lost(self, message: str) -> None:
        if self._plan.fail_on_data_loss:
            raise noted(DataLossError(message))
        log.warning("%s; failOnDataLoss is false: going on without them", message)

    def _progressed(self) -> None:
        self._deadline = time.monotonic() + self._plan.timeout_ms / 1000

    def _check_deadline(self) -> None:
        last = self._pooled.last_error
        last.raise_if_hopeless(self._settings["bootstrap.servers"])
        if time.monotonic() > self._deadline:
            r = self._range
            raise noted(
                RequestTimedOutError(
                    f"{r.topic}-{r.partition}: nothing came at offset {self._position} (of "
                    f"{r.start} to {r.end}) for {self._plan.timeout_ms} ms{last.text}",
                    hint="Check the broker, or raise kafkaConsumer.pollTimeoutMs.",
                )
            )


def to_record_batch(
    messages: Sequence[Message], topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Messages of one partition as columns. The unbound methods in ``map`` spare a Python frame
    for each record."""
    count = len(messages)
    stamps: list[tuple[int, int]] = list(map(Message.timestamp, messages))
    types, millis = [stamp[0] for stamp in stamps], [stamp[1] for stamp in stamps]
    micros = pc.multiply(pa.array(millis, pa.int64()), 1000)
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
    headers = message.headers()
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
