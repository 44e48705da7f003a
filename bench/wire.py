"""A minimal Kafka client that sends requests which were encoded before the measurement.

So the server is measured, and not the client. It sends as much as it can with a window of requests
without response (``write``), one round after the other (``rounds``), or at a rate (``paced``). It
knows Produce v9 and Fetch v12 only, which tidemill and Apache Kafka support.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.kafka_codec.headers import request_header
from tidemill.kafka_codec.messages import encode_request
from tidemill.log.format.records import NewRecord, encode_batch

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 9, 12
FETCH_BYTES = 1 << 20
"""Approximate bytes per partition in a fetch, the default of real clients."""
TIMEOUT_MS, WAIT_MS = 30_000, 500
RECORD_OVERHEAD = 12
"""Most bytes of a record without key and headers, in addition to its value."""
ANSWER_BYTES = 4096
"""Size of the buffer for a response to Produce."""
RESPONSE_BYTES = 4 << 20
"""Approximate bytes of a whole fetch response."""


@dataclass(frozen=True)
class Load:
    """Many batches, written with a window of requests.

    Attributes:
        record_bytes: Size of a record's value.
        partitions: Number of partitions, which are written in turn.
        total_bytes: Size of all values, approximately.
        batch_bytes: Size of a batch.
        window: Most requests without response.
    """

    record_bytes: int
    partitions: int
    total_bytes: int
    batch_bytes: int = 65_536
    window: int = 8

    @property
    def records_per_batch(self) -> int:
        return max(1, self.batch_bytes // (self.record_bytes + RECORD_OVERHEAD))

    @property
    def batches(self) -> int:
        return max(16, self.total_bytes // (self.records_per_batch * self.record_bytes))

    @property
    def records(self) -> int:
        return self.batches * self.records_per_batch

    @property
    def megabytes(self) -> float:
        """The size of all values in 10^6 bytes."""
        return self.records * self.record_bytes / 1e6

    def batches_of(self, partition: int) -> int:
        """Return the number of batches in one partition when all are written round robin."""
        return len(range(partition, self.batches, self.partitions))

    def batch(self) -> bytes:
        """Return one batch."""
        return make_batch(self.record_bytes, self.records_per_batch)


def connect(address: tuple[str, int]) -> socket.socket:
    """Open a blocking connection without Nagle's delay."""
    sock = socket.create_connection(address, timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return sock


def make_batch(record_bytes: int, records: int = 1) -> bytes:
    """Return one record batch with incompressible values."""
    now_ms = int(time.time() * 1000)
    content = [NewRecord(None, os.urandom(record_bytes))] * records
    return bytes(encode_batch(content, timestamp_ms=now_ms))


def _frame(api: int, version: int, tree: dict[str, object]) -> bytes:
    body = request_header(api, version, 7, "bench") + encode_request(api, version, tree)
    return struct.pack(">i", len(body)) + body


def produce_frame(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    """Return a whole Produce v9 request with one batch."""
    return produce_frame_to(topic, [partition], batch, acks)


def produce_frame_to(topic: str, partitions: Sequence[int], batch: bytes, acks: int) -> bytes:
    """Return a whole Produce v9 request with the same batch for each of some partitions."""
    data = [{"index": partition, "records": batch} for partition in partitions]
    topics = [{"name": topic, "partition_data": data}]
    tree = {"acks": acks, "timeout": TIMEOUT_MS, "topic_data": topics}
    return _frame(PRODUCE, PRODUCE_VERSION, tree)


def fetch_frame(
    topic: str, positions: Iterable[tuple[int, int]], partition_bytes: int, max_bytes: int
) -> bytes:
    """Return a whole Fetch v12 request; ``positions`` are (partition, offset)."""
    parts = [
        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
        for partition, offset in positions
    ]
    topics = [{"topic": topic, "partitions": parts}]
    tree = {"max_wait": WAIT_MS, "min_bytes": 1, "max_bytes": max_bytes, "topics": topics}
    return _frame(FETCH, FETCH_VERSION, tree)


def read_exactly(sock: socket.socket, view: memoryview) -> None:
    """Fill ``view`` from the socket."""
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionError("the server closed the connection")
        view = view[count:]


def read_response(sock: socket.socket, buffer: bytearray) -> int:
    """Read one length-prefixed response into ``buffer`` and return its length."""
    view = memoryview(buffer)
    read_exactly(sock, view[:4])
    (size,) = struct.unpack_from(">i", buffer)
    if size > len(buffer):
        raise ValueError(f"a response of {size} bytes is larger than the buffer of {len(buffer)}")
    read_exactly(sock, view[:size])
    return int(size)


def windowed(sock: socket.socket, frames: Sequence[bytes], count: int, window: int) -> bytes:
    """Send ``count`` frames round robin, at most ``window`` without response.

    Returns:
        The last response.
    """
    buffer = bytearray(ANSWER_BYTES)
    unanswered = size = 0
    for i in range(count):
        if unanswered == window:
            read_response(sock, buffer)
            unanswered -= 1
        sock.sendall(frames[i % len(frames)])
        unanswered += 1
    while unanswered:
        size = read_response(sock, buffer)
        unanswered -= 1
    return bytes(buffer[:size])


def pipelined(sock: socket.socket, frames: Sequence[bytes], count: int, window: int) -> float:
    """Send ``count`` Produce requests and return the seconds until the last response.

    Raises:
        RuntimeError: The last response has an error code.
    """
    started = time.perf_counter()
    answer = windowed(sock, frames, count, window)
    elapsed = time.perf_counter() - started
    _check_last_produce(answer)
    return elapsed


def _check_last_produce(answer: bytes) -> None:
    """Raise the error of a Produce v9 response with one topic and one partition."""
    position = 4 + 1 + 1  # correlation id, header tags, topic count
    name = answer[position] - 1
    position += 1 + name + 1 + 4
    (error,) = struct.unpack_from(">h", answer, position)
    if error:
        raise RuntimeError(f"produce failed with error code {error}")


def write(address: tuple[str, int], topic: str, load: Load, batch: bytes, acks: int) -> float:
    """Write a load to a topic and return the seconds."""
    frames = [produce_frame(topic, partition, batch, acks) for partition in range(load.partitions)]
    with contextlib.closing(connect(address)) as sock:
        return pipelined(sock, frames, load.batches, load.window)


def rounds(
    address: tuple[str, int], frames: Sequence[bytes], together: int, count: int
) -> list[float]:
    """Send ``together`` requests with one call and read their responses, ``count`` times.

    Returns:
        The seconds of each round.
    """
    following = itertools.cycle(frames)
    sends = [b"".join(itertools.islice(following, together)) for _ in frames]
    buffer = bytearray(RESPONSE_BYTES)
    seconds = []
    size = 0
    with contextlib.closing(connect(address)) as sock:
        for each in itertools.islice(itertools.cycle(sends), count):
            began = time.perf_counter()
            sock.sendall(each)
            for _ in range(together):
                size = read_response(sock, buffer)
            seconds.append(time.perf_counter() - began)
    if frames[0][4:6] == struct.pack(">h", PRODUCE):
        _check_last_produce(bytes(buffer[:size]))
    return seconds


def paced(
    address: tuple[str, int],
    frames: Sequence[bytes],
    connections: int,
    rate: float,
    seconds: float,
) -> list[float]:
    """Send requests at a rate over some connections, whether earlier ones were answered or not.

    Args:
        frames: Requests. They are sent in turn.
        rate: Requests a second of each connection.

    Returns:
        The seconds of each request from the time at which it was due, so that a server that stops
        for a while pays for all that were due meanwhile.

    Raises:
        TimeoutError: Requests were not answered within a minute.
    """
    with contextlib.ExitStack() as stack:
        socks = [
            stack.enter_context(contextlib.closing(connect(address))) for _ in range(connections)
        ]
        waiting: dict[socket.socket, deque[float]] = {sock: deque() for sock in socks}
        received = {sock: bytearray() for sock in socks}
        taken: list[float] = []
        count, sent, total = int(rate * connections * seconds), 0, rate * connections
        began = time.perf_counter()
        while len(taken) < count:
            now = time.perf_counter() - began
            while sent < count and sent / total <= now:
                sock = socks[sent % connections]
                waiting[sock].append(sent / total)
                sock.sendall(frames[sent % len(frames)])
                sent += 1
            wait = sent / total - (time.perf_counter() - began) if sent < count else 1.0
            if now > seconds + 60:
                raise TimeoutError(f"{len(taken)} of {count} requests were answered in time")
            for sock in select.select(socks, [], [], max(0.0, wait))[0]:
                arrived = sock.recv(1 << 16)
                if not arrived:
                    raise ConnectionError("the server closed the connection")
                at = time.perf_counter() - began
                answers = _whole_responses(received[sock], arrived)
                taken += [at - waiting[sock].popleft() for _ in range(answers)]
    return taken


def _whole_responses(buffer: bytearray, arrived: bytes) -> int:
    """Return how many responses are complete, and keep the rest."""
    buffer += arrived
    position = count = 0
    while len(buffer) - position >= 4:
        (size,) = struct.unpack_from(">i", buffer, position)
        if len(buffer) - position < 4 + size:
            break
        position += 4 + size
        count += 1
    del buffer[:position]
    return count


def read(
    address: tuple[str, int], topic: str, ranges: Mapping[int, tuple[int, int]], batch_bytes: int
) -> float:
    """Fetch the records between two offsets of each partition and return the seconds.

    Limits are multiples of ``batch_bytes``, so that no response ends in the middle of a batch.
    Partitions that returned records are last in the next request, as with real clients.

    Raises:
        RuntimeError: A response has an error code.
    """
    partition_bytes = max(1, FETCH_BYTES // batch_bytes) * batch_bytes
    response_bytes = max(1, RESPONSE_BYTES // partition_bytes) * partition_bytes
    buffer = bytearray(response_bytes + (1 << 20))
    positions = {partition: start for partition, (start, _) in ranges.items()}
    with contextlib.closing(connect(address)) as sock:
        started = time.perf_counter()
        while positions:
            sock.sendall(fetch_frame(topic, positions.items(), partition_bytes, response_bytes))
            size = read_response(sock, buffer)
            for partition, next_offset in _positions_after(buffer, size):
                if next_offset > positions.get(partition, next_offset):
                    del positions[partition]
                    if next_offset < ranges[partition][1]:
                        positions[partition] = next_offset
        return time.perf_counter() - started


def _uvarint(buffer: bytearray, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _positions_after(buffer: bytearray, size: int) -> list[tuple[int, int]]:
    """Return (partition, next offset) for each partition of a Fetch v12 response."""
    found: list[tuple[int, int]] = []
    position = 4 + 1 + 4 + 2 + 4  # correlation id, tags, throttle, error, session
    topics, position = _uvarint(buffer, position)
    for _ in range(topics - 1):
        length, position = _uvarint(buffer, position)
        position += length - 1
        count, position = _uvarint(buffer, position)
        for _ in range(count - 1):
            partition, error = struct.unpack_from(">ih", buffer, position)
            if error:
                raise RuntimeError(f"fetch failed with error code {error}")
            position += 4 + 2 + 8 * 3
            aborted, position = _uvarint(buffer, position)
            position += 17 * max(0, aborted - 1) + 4
            length, position = _uvarint(buffer, position)
            end = position + length - 1
            found.append((partition, _last_offset(buffer, position, end) + 1))
            position = _skip_tags(buffer, end)
        position = _skip_tags(buffer, position)
    return found


def _skip_tags(buffer: bytearray, position: int) -> int:
    count, position = _uvarint(buffer, position)
    for _ in range(count):
        _, position = _uvarint(buffer, position)
        length, position = _uvarint(buffer, position)
        position += length
    return position


def _last_offset(buffer: bytearray, position: int, end: int) -> int:
    """Return the last offset of the last whole batch between two positions; -1 without one."""
    last = -1
    while end - position >= 61:
        base, length = struct.unpack_from(">qi", buffer, position)
        if position + 12 + length > end:
            break
        (delta,) = struct.unpack_from(">i", buffer, position + 23)
        last = base + delta
        position += 12 + length
    return last
