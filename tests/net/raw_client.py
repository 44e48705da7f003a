"""A Kafka client on a blocking socket, an attacker, and the memory of the broker between them."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.protocols.kafka.messages import from_kio, kio_read
from tests.protocols.kafka.trees import Tree
from tests.protocols.kafka.wire import request
from tests.support.broker_process import BrokerProcess
from tidemill.kafka_codec.schema import response_type

needs_peak = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads the peak memory from /proc"
)


def connect(broker: BrokerProcess, receive_buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(60)
    client.connect(("127.0.0.1", broker.port))
    return client


def response(client: socket.socket, key: int, version: int) -> Tree:
    (size,) = struct.unpack(">i", _read(client, 4))
    return from_kio(kio_read(response_type(key, version), _read(client, size)[4:]))


def _read(client: socket.socket, size: int) -> bytes:
    out = bytearray(size)
    view, got = memoryview(out), 0
    while got < size:
        count = client.recv_into(view[got:])
        if not count:
            raise ConnectionResetError("closed")
        got += count
    return bytes(out)


def call(client: socket.socket, key: int, version: int, tree: Tree) -> Tree:
    client.sendall(request(key, version, tree))
    return response(client, key, version)


def begin_peak(broker: BrokerProcess) -> int:
    """Let the peak of the broker's memory begin; return its present bytes."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return _memory(broker, "VmRSS")


def peak(broker: BrokerProcess) -> int:
    """Return the most bytes of memory that the broker had since ``begin_peak``."""
    return _memory(broker, "VmHWM")


def _memory(broker: BrokerProcess, field: str) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


@contextmanager
def attacking(module: str, *arguments: str) -> Iterator[None]:
    """Run a program of the tests that attacks until it is killed, and says when it has begun."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"attacking\n"
            yield
            assert process.poll() is None, "the attack ended early"
        finally:
            process.kill()
