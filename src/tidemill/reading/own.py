"""Reads one range with our own client and the decoder of the extension: the edition for speed.

While records are decoded, the response with the next ones is already under way. Must not know:
Spark, queries.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidemill.confluent.pooling import ClientPool
from tidemill.kafka_client.brokers import UNKNOWN_TOPIC
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
)
from tidemill.kafka_client.fetching.client import EARLIEST, LATEST, Client
from tidemill.kafka_client.fetching.decompression import Decompressor
from tidemill.kafka_client.fetching.settings import understand
from tidemill.kafka_codec import client_hot
from tidemill.kafka_codec.declared import FETCH
from tidemill.native import extension
from tidemill.reading import failures
from tidemill.reading.plan import (
    BATCH_BYTES,
    DEFAULT_SETTINGS,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    FetchPlan,
)
from tidemill.reading.ranges import OffsetRange

_OFFSET_OUT_OF_RANGE = 1
_RETRIABLE = frozenset({5, 6, 7, 8, 9, 13, 56, 74, 75, 78})
"""LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE,
REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE."""

_KNOWN_TOPIC_PATIENCE_S = 2.0
"""Seconds for which a topic that was there can be unknown before it counts as deleted."""
_LEAST_FETCH_BYTES = 64 * 1024
_EMPTY_WAIT_MS = 500
_LEAST_LIMIT = 128 * 1024 * 1024
_OVERHEAD = 64 * 1024
"""Bytes of a response besides the records, more than enough."""
_FULL, _OLD_FORMAT = 0, 3

_pool: ClientPool[Client] = ClientPool(Client.close)
# A read that is collected as garbage gives its client back, at any moment, in any thread.


class OldFormatError(Exception):
    """The log contains message format v0 or v1, which the decoder does not know.

    Args:
        position: The offset from which it does.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


_LEAST_CONSTANTS = 1024


def close_idle_clients() -> None:
    """Close the connections that this process keeps for its next range."""
    _pool.clear()


def start(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch] | None:
    """Return the record batches of a range, as ``fetch`` does.

    Returns:
        None if a setting is left to librdkafka. The iterator raises ``OldFormatError`` where the
        log contains an old message format.
    """
    kafka = {**DEFAULT_SETTINGS, **plan.kafka}
    settings = understand(kafka)
    if settings is None:
        return None
    try:
        client = _pool.take(kafka, lambda: Client(settings))
    except OSError:  # a certificate can't be read: librdkafka says which
        return None
    client.wake()
    return _read(RangeReader(wanted, plan, client), client, kafka)


def _read(reader: RangeReader, client: Client, kafka: dict[str, str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader.batches()
    except (GeneratorExit, OldFormatError):
        _give(client, kafka)
        raise
    except BaseException:
        client.close()
        raise
    _give(client, kafka)


def _give(client: Client, kafka: dict[str, str]) -> None:
    client.rest()
    _pool.give(kafka, client)


class RangeReader:
    """Reads one range once."""

    def __init__(self, wanted: OffsetRange, plan: FetchPlan, client: Client) -> None:
        self._range = wanted
        self._plan = plan
        self._client = client
        self._settings = client.settings
        self._connection_settings = client.settings.connection
        self._position = wanted.start
        limit = max(_LEAST_LIMIT, self._connection_settings.response_bytes)
        self._decoder = extension.Decoder(
            plan.include_headers, self._settings.check_crcs, Decompressor(limit)
        )
        schema = SCHEMA_WITH_HEADERS if plan.include_headers else SCHEMA
        self._maker = BatchMaker(wanted.topic, wanted.partition, schema)
        self._partition_bytes = self._settings.partition_bytes
        self._wait_ms = self._settings.wait_ms
        self._leader: Connection | None = None
        self._requested: int | None = None  # the offset of the request under way
        self._cause = ""
        self._failures = 0
        self._unknown_since: float | None = None
        self._out_of_range: BrokerError | None = None
        self._deadline = 0.0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range.

        Raises:
            OldFormatError: The log contains a message format that the decoder does not know.
            TidemillError: As ``fetch`` says.
        """
        self._progressed()
        while self._position < self._range.end:
            try:
                if self._out_of_range is not None:
                    self._skip_lost(self._out_of_range)
                    continue
                response = self._receive()
            except ConnectionFailedError as error:
                self._retry(str(error))
            except ConnectionRejectedError as error:
                servers = str(self._plan.kafka.get("bootstrap.servers", ""))
                raise failures.rejected(servers, str(error)) from error
            except BrokerError as error:
                self._on_error(error)
            else:
                self._failures, self._unknown_since = 0, None
                yield from self._decode(response)

    # --- requests --------------------------------------------------------------------------------

    def _receive(self) -> client_hot.FetchResponse:
        """Return the response that begins at the position."""
        if self._leader is None or self._requested != self._position:
            r = self._range
            if self._requested is not None:  # a response that does not fit is never received
                self._client.forget(r.topic, r.partition, self._leader)
            self._leader = self._client.leader(r.topic, r.partition, self._left_s())
            self._request(self._position)
        self._requested = None
        version = self._leader.versions[FETCH]
        response = self._leader.receive(
            self._left_s(), lambda view: client_hot.parse_fetch(view, version)
        )
        if response.error:
            raise BrokerError(response.error)
        return response

    def _request(self, offset: int) -> None:
        assert self._leader is not None
        s = self._settings
        size = self._partition_bytes
        if (known := self._client.record_bytes.get(self._range.topic)) is not None:
            needed = int((self._range.end - offset) * known * 1.25) + _LEAST_FETCH_BYTES
            size = min(size, needed)
        request = client_hot.FetchRequest(
            topic=self._range.topic,
            partition=self._range.partition,
            offset=offset,
            partition_bytes=size,
            max_bytes=max(s.max_bytes, size),
            min_bytes=s.min_bytes,
            wait_ms=self._wait_ms,
            committed=s.read_committed,
        )
        version = self._leader.versions[FETCH]
        self._leader.send(FETCH, request.encode(version))
        self._requested = offset

    # --- records ---------------------------------------------------------------------------------

    def _decode(self, response: client_hot.FetchResponse) -> Iterator[pa.RecordBatch]:
        before, r = self._position, self._range
        following, size = extension.scan_batches(response.records)
        if following > before:
            self._client.record_bytes[r.topic] = size / (following - before)
            if following < r.end:
                self._request_ahead(following)
        self._decoder.feed(
            response.records, response.aborted if self._settings.read_committed else None
        )
        try:
            ended = _FULL
            while ended == _FULL:
                self._position, ended, rows, buffers = self._read()
                if rows:
                    yield self._maker.make(rows, buffers)
                    self._progressed()  # do not count the time that the caller took
        finally:
            self._decoder.release()
        if ended == _OLD_FORMAT:
            raise OldFormatError(self._position)
        if self._position > before:
            self._wait_ms = self._settings.wait_ms
            self._progressed()
        elif response.records:
            self._enlarge()
        else:
            self._wait_ms = max(self._wait_ms, _EMPTY_WAIT_MS)
            self._check_deadline()

    def _request_ahead(self, offset: int) -> None:
        try:
            self._request(offset)
        except ConnectionFailedError:  # the records that have come are good
            self._client.forget(self._range.topic, self._range.partition, self._leader)
            self._leader, self._requested = None, None

    def _read(self) -> tuple[int, int, int, tuple[object, ...]]:
        try:
            result: tuple[int, int, int, tuple[object, ...]] = self._decoder.read(
                self._position, self._range.end, self._plan.batch_rows, BATCH_BYTES
            )
        except ValueError as error:
            raise failures.unreadable(
                self._range,
                self._position,
                f"the stored records are damaged: {error}",
                hint="Check the broker's disk. A later starting offset skips the records.",
            ) from error
        return result

    def _enlarge(self) -> None:
        """Request more bytes, because the first batch is larger than the response was."""
        most = self._connection_settings.response_bytes - _OVERHEAD
        if self._partition_bytes >= most:
            raise failures.unreadable(
                self._range,
                self._position,
                f"the next batch is larger than {most} bytes",
                hint="Raise kafka.receive.message.max.bytes.",
            )
        self._partition_bytes = min(4 * self._partition_bytes, most)
        self._client.record_bytes.pop(self._range.topic, None)

    # --- errors ----------------------------------------------------------------------------------

    def _on_error(self, error: BrokerError) -> None:
        if error.code == _OFFSET_OUT_OF_RANGE:
            self._out_of_range = error
        elif error.code == UNKNOWN_TOPIC:
            now = time.monotonic()
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since >= self._patience_s():
                failures.deleted(self._range, self._position, self._plan)
                self._position = self._range.end
                return
            self._retry(error.text, keep_connection=True)
        elif error.code in _RETRIABLE:
            self._retry(error.text, keep_connection=True)
        else:
            raise failures.unreadable(self._range, self._position, error.text)

    def _patience_s(self) -> float:
        known = self._client.has_known(self._range.topic)
        patience = _KNOWN_TOPIC_PATIENCE_S if known else self._settings.propagation_ms / 1000
        return min(patience, self._plan.timeout_ms / 1000)

    def _skip_lost(self, error: BrokerError) -> None:
        """Continue after lost records, at the first one that exists, if it is in the range."""
        r = self._range
        first, last = (
            self._client.offset(r.topic, r.partition, which, self._left_s())
            for which in (EARLIEST, LATEST)
        )
        self._out_of_range = None
        if first <= self._position <= last:  # the log has changed since
            self._retry(error.text, keep_connection=True)
            return
        failures.removed(r, self._position, self._plan, first=first, last=last, cause=error.text)
        self._position = first if self._position < first < r.end else r.end

    def _retry(self, cause: str, *, keep_connection: bool = False) -> None:
        """Wait a moment before the request is sent again, to the leader of then."""
        r = self._range
        # An attempt that the deadline has ended says less than the failure before it.
        if not self._cause or time.monotonic() <= self._deadline:
            self._cause = f": {cause}"
        self._client.forget(r.topic, r.partition, None if keep_connection else self._leader)
        self._leader, self._requested = None, None
        self._check_deadline()
        self._failures += 1
        if self._failures > 1:  # the first one may be a connection that was idle for too long
            time.sleep(min(self._settings.backoff_ms / 1000, max(0.0, self._left_s())))

    def _progressed(self) -> None:
        self._deadline = time.monotonic() + self._plan.timeout_ms / 1000

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        return max(0.001, min(left, self._connection_settings.request_timeout_ms / 1000))

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise failures.timed_out(self._range, self._position, self._plan, self._cause)


class BatchMaker:
    """Makes the record batches of one partition."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._constants: tuple[pa.Array, pa.Array] = (pa.nulls(0), pa.nulls(0))

    def make(self, rows: int, buffers: Sequence[Any]) -> pa.RecordBatch:
        """Return the rows as a record batch, without copying them."""
        given = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        topics, partitions = self._repeated(rows)
        columns = [
            pa.Array.from_buffers(pa.binary(), rows, given[0:3]),
            pa.Array.from_buffers(pa.binary(), rows, given[3:6]),
            topics,
            partitions,
            pa.Array.from_buffers(pa.int64(), rows, [None, given[6]]),
            pa.Array.from_buffers(self._schema.field("timestamp").type, rows, [None, given[7]]),
            pa.Array.from_buffers(pa.int32(), rows, [None, given[8]]),
        ]
        if len(self._schema) > len(columns):
            columns.append(self._headers(rows, given[9:]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _repeated(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return topic and partition for each row. They are made once, and sliced."""
        topics, partitions = self._constants
        if len(topics) < rows:
            # From buffers: pa.scalar would import pandas, which takes longer than all the rest.
            count = max(rows, _LEAST_CONSTANTS)
            name = self._topic.encode()
            ends = array("i", range(0, len(name) * count + 1, len(name)))
            text = [None, pa.py_buffer(ends), pa.py_buffer(name * count)]
            topics = pa.Array.from_buffers(pa.string(), count, text)
            numbers = [None, pa.py_buffer(array("i", [self._partition]) * count)]
            partitions = pa.Array.from_buffers(pa.int32(), count, numbers)
            self._constants = topics, partitions
        return topics.slice(0, rows), partitions.slice(0, rows)

    def _headers(self, rows: int, given: Sequence[pa.Buffer | None]) -> pa.Array:
        kind = self._schema.field("headers").type
        count = (0 if given[3] is None else given[3].size // 4) - 1
        keys = pa.Array.from_buffers(pa.string(), count, given[2:5])
        values = pa.Array.from_buffers(pa.binary(), count, given[5:8])
        pairs = pa.Array.from_buffers(kind.value_type, count, [None], children=[keys, values])
        return pa.Array.from_buffers(kind, rows, given[0:2], children=[pairs])
