"""Sizes of partitions on disk: DescribeLogDirs, which librdkafka does not offer.

One request per broker over a plain socket, version 1 (KIP-113), which every Kafka since 1.0 and
tidemill speak. Where the cluster wants TLS or SASL, or does not answer, sizes stay unknown.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing

from tidemill.cli import output
from tidemill.cli.client import CONNECT_SECONDS, REQUEST_SECONDS, Cluster
from tidemill.errors import ProtocolError

API_KEY, API_VERSION = 35, 1
MAX_RESPONSE_BYTES = 64 * 1024 * 1024


def partition_sizes(cluster: Cluster, topic: str) -> dict[int, int]:
    """Bytes on disk by partition (the largest replica's); empty where they can't be known."""
    if cluster.properties.get("security.protocol", "plaintext").lower() != "plaintext":
        return {}
    metadata = cluster.ask("brokers", lambda: cluster.admin.list_topics(timeout=REQUEST_SECONDS))
    partitions = sorted(metadata.topics[topic].partitions) if topic in metadata.topics else []
    sizes: dict[int, int] = {}
    for broker in metadata.brokers.values():
        try:
            answer = _ask(str(broker.host), int(broker.port), topic, partitions)
        except (OSError, ProtocolError) as error:
            output.note(f"Sizes are not known: broker {broker.id} says {error}.")
            return {}
        for partition, size in answer.items():
            sizes[partition] = max(size, sizes.get(partition, 0))
    return sizes


def _ask(host: str, port: int, topic: str, partitions: list[int]) -> dict[int, int]:
    """One broker's sizes.

    Raises:
        OSError: it can't be reached, or closes the connection.
        ProtocolError: it answers something else.
    """
    frame = _request(topic, partitions)
    with closing(socket.create_connection((host, port), CONNECT_SECONDS)) as connection:
        connection.settimeout(REQUEST_SECONDS)
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        if not 0 <= length <= MAX_RESPONSE_BYTES:
            raise ProtocolError(f"an answer of {length} bytes")
        return _sizes(_receive(connection, length), topic)


def _request(topic: str, partitions: list[int]) -> bytes:
    header = struct.pack(">hhi", API_KEY, API_VERSION, 1) + _string("tidemill-cli")
    numbers = struct.pack(f">{len(partitions)}i", *partitions)
    return header + struct.pack(">i", 1) + _string(topic) + _count(partitions) + numbers


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _count(items: list[int]) -> bytes:
    return struct.pack(">i", len(items))


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = connection.recv(min(length - len(data), 1 << 20))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return bytes(data)


class _Fields:
    """Reads big-endian fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(">" + form, self._data, self._position)
        except struct.error:
            raise ProtocolError("a torn answer") from None
        self._position += struct.calcsize(">" + form)
        return int(value)

    def string(self) -> str:
        length = self.take("h")
        end = self._position + max(length, 0)
        text = self._data[self._position : end].decode(errors="replace")
        self._position = end
        return text


def _sizes(answer: bytes, topic: str) -> dict[int, int]:
    fields = _Fields(answer)
    fields.take("i")  # correlation id
    fields.take("i")  # throttle time
    sizes: dict[int, int] = {}
    for _ in range(fields.take("i")):
        error = fields.take("h")
        if error:
            raise ProtocolError(f"error {error} for a log dir")
        fields.string()  # log dir
        for _ in range(fields.take("i")):
            name = fields.string()
            for _ in range(fields.take("i")):
                partition, size = fields.take("i"), fields.take("q")
                fields.take("q")  # offset lag
                is_future = fields.take("b")
                if name == topic and not is_future:
                    sizes[partition] = size
    return sizes
