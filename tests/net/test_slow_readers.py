"""Clients that fetch and never read, against a real broker process and its memory."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.kafka.messages import from_kio, kio_read
from tests.protocols.kafka.wire import request
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.kafka_codec.schema import response_type
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.net.responses import STUCK_SECONDS

PRODUCE, FETCH, CREATE_TOPICS = 0, 1, 19
BATCHES, BATCH_BYTES = 16, 6_000_000
"""More in one batch than the kernel keeps for a connection."""
BOUND = 128 << 20
MARGIN = 24 << 20
"""For one batch over the bound, 100 connections, and what malloc keeps between buffers in use."""
READERS = 100

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads the peak memory from /proc"
)


def connect(broker: BrokerProcess, receive_buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(60)
    client.connect(("127.0.0.1", broker.port))
    return client


def read_exactly(client: socket.socket, size: int) -> bytearray:
    out = bytearray(size)
    view, got = memoryview(out), 0
    while got < size:
        count = client.recv_into(view[got:])
        if not count:
            raise ConnectionResetError("closed")
        got += count
    return out


def response(client: socket.socket, key: int, version: int) -> dict[str, Any]:
    (size,) = struct.unpack(">i", read_exactly(client, 4))
    return from_kio(kio_read(response_type(key, version), bytes(read_exactly(client, size)[4:])))


def call(client: socket.socket, key: int, version: int, tree: dict[str, Any]) -> dict[str, Any]:
    client.sendall(request(key, version, tree))
    return response(client, key, version)


def fetch(offset: int = 0) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 30}
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 30,
        "session_epoch": -1,
        "topics": [{"topic": "big", "partitions": [part]}],
    }


def records_of(answer: dict[str, Any]) -> bytes:
    (part,) = answer["responses"][0]["partitions"]
    assert part["error_code"] == 0
    return bytes(part["records"])


def fill(broker: BrokerProcess) -> None:
    client = connect(broker)
    topic = {
        "name": "big",
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": "max.message.bytes", "value": "10000000"}],
    }
    call(client, CREATE_TOPICS, 4, {"topics": [topic], "timeout": 10_000})
    for number in range(BATCHES):
        record = NewRecord(None, bytes([number]) * BATCH_BYTES)
        records = bytes(encode_batch([record], timestamp_ms=int(time.time() * 1000)))
        tree = {
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": "big", "partition_data": [{"index": 0, "records": records}]}],
        }
        answer = call(client, PRODUCE, 7, tree)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    client.close()


def read_all(broker: BrokerProcess) -> bytes:
    """Read the topic to its end, as a consumer does: one that lost its connection connects again.

    On a busy machine it may get no processor for so long that the broker takes it for stuck.
    """
    client, whole, offset = connect(broker), b"", 0
    while offset < BATCHES:
        try:
            got = records_of(call(client, FETCH, 11, fetch(offset)))
        except ConnectionError:
            client.close()
            client = connect(broker)
            continue
        # A consumer skips a batch that the limit has cut.
        at = 0
        while len(got) - at > 12:
            base, size = struct.unpack_from(">qi", got, at)
            if at + 12 + size > len(got):
                break
            at += 12 + size
            offset = base + 1
        assert at
        whole += got[:at]
    client.close()
    return whole


def memory(broker: BrokerProcess, field: str) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


WITHOUT_SENDFILE = (
    sys.executable,
    "-c",
    "import runpy; from tidemill import system; system.can_send_files = lambda: False; "
    "runpy.run_module('tidemill', run_name='__main__')",
)
"""Starts a broker that reads all ranges of files into memory."""


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("sends_files", [False, True])
def test_consumers_that_never_read_stay_within_the_bound_and_stop_no_one(
    tmp_path: Path, sends_files: bool
) -> None:
    settings = {"limits.total_inflight_bytes": str(BOUND)}
    command = (sys.executable, "-m", "tidemill") if sends_files else WITHOUT_SENDFILE
    with BrokerProcess(tmp_path, settings=settings, command=command) as broker:
        fill(broker)
        stored = read_all(broker)
        assert len(stored) > BATCHES * BATCH_BYTES
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak begins here
        before = memory(broker, "VmRSS")
        silent = [connect(broker, 4096) for _ in range(READERS)]
        for client in silent:
            client.sendall(request(FETCH, 11, fetch()))
        started = time.monotonic()
        results: list[bytes] = []
        consumers = [
            threading.Thread(target=lambda: results.append(read_all(broker))) for _ in range(2)
        ]
        for thread in consumers:
            thread.start()
        for thread in consumers:
            thread.join(timeout=600)
        took = time.monotonic() - started
        assert results == [stored, stored]
        # Those before them: 20 at a time fit into the bound.
        assert took < effort.bound(40 * STUCK_SECONDS, normal=600)
        assert memory(broker, "VmHWM") - before < BOUND + MARGIN
        if not sends_files:  # ranges of files take no memory, so no client has to be closed
            assert "event=connection.not_reading" in broker.log(100_000)

        whole = 0
        for client in silent:  # it reads after all: its whole answer, or a closed socket
            try:
                got = records_of(response(client, FETCH, 11))
            except ConnectionError:
                continue
            assert stored.startswith(got)
            whole += 1
            if whole == 2:
                break
        assert whole == 2
        poll_until(lambda: read_all(broker) == stored, 30, "the broker serves as before")
