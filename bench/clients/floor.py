"""The floor of small requests: a server that answers Produce immediately, or after one fdatasync::

    python -m bench.clients.floor
    python -m bench.clients.floor --sync FILE

What a load costs here is the client's own, and that of loopback. It reads no record and keeps
nothing. With a file, it appends the batches of all requests that are there together, syncs, and
then answers them: what every server must do that promises them to be on disk. One thread, no event
loop. The codec is tidemill's, so clients send what they send to tidemill.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
from typing import Any, cast
from uuid import UUID, uuid4

from tidemill.kafka_codec.headers import frame_response, parse_header, peek_header
from tidemill.kafka_codec.hot import (
    decode_produce,
    encode_produce,
)
from tidemill.kafka_codec.messages import decode_request, encode_response

PRODUCE, METADATA, VERSIONS, CREATE_TOPICS, PRODUCER_ID = 0, 3, 18, 19, 22
VERSION_RANGES = {
    PRODUCE: (3, 13),
    METADATA: (0, 13),
    VERSIONS: (0, 4),
    CREATE_TOPICS: (2, 7),
    PRODUCER_ID: (0, 5),
}
OFFSETS = (0, -1, 0)
READ_BYTES = 1 << 18
DEFAULT_PARTITIONS = 12


class Floor:
    """The server.

    Args:
        sync: Descriptor of the file that gets all batches; None answers without one.
    """

    def __init__(self, sync: int | None) -> None:
        self._sync = sync
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._clients: dict[int, socket.socket] = {}
        self._rest: dict[int, bytes] = {}
        self._topics: dict[str, tuple[UUID, int]] = {}
        self._batches: list[memoryview] = []

    def serve(self) -> None:
        """Answer until the process ends."""
        with select.epoll() as ready:
            ready.register(self._listener, select.EPOLLIN)
            while True:
                answers = []
                for fd, _ in ready.poll():
                    if fd == self._listener.fileno():
                        client, _ = self._listener.accept()
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        self._clients[client.fileno()] = client
                        ready.register(client, select.EPOLLIN)
                        continue
                    answer = self._receive(fd)
                    if answer is None:
                        ready.unregister(fd)
                        self._clients.pop(fd).close()
                    else:
                        answers.append((fd, answer))
                if self._sync is not None and self._batches:
                    os.write(self._sync, b"".join(self._batches))
                    os.fdatasync(self._sync)
                self._batches.clear()
                for fd, answer in answers:
                    self._clients[fd].sendall(answer)

    def _receive(self, fd: int) -> bytes | None:
        """Return the answers to the requests that are complete; None if the client is gone."""
        try:
            arrived = self._clients[fd].recv(READ_BYTES)
        except ConnectionError:
            arrived = b""
        if not arrived:
            self._rest.pop(fd, None)
            return None
        view = memoryview(self._rest.pop(fd, b"") + arrived)
        position, parts = 0, []
        while len(view) - position >= 4:
            (size,) = struct.unpack_from(">i", view, position)
            if len(view) - position < 4 + size:
                break
            parts.append(self._answer(view[position + 4 : position + 4 + size]))
            position += 4 + size
        if position < len(view):
            self._rest[fd] = bytes(view[position:])
        return b"".join(parts)

    def _answer(self, frame: memoryview) -> bytes:
        key, version, correlation_id = peek_header(frame)
        _, body = parse_header(frame, key, version)
        if key == PRODUCE:
            answer = self._produce(frame, body, version)
        else:
            tree = self._tree(key, decode_request(key, version, frame, body))
            answer = bytes(encode_response(key, version, tree))
        parts = frame_response(key, version, correlation_id, [answer])
        return b"".join(cast("list[bytes]", parts))

    def _produce(self, frame: memoryview, body: int, version: int) -> bytes:
        request = decode_produce(frame, body, version)
        for _, _, partitions in request.topics:
            self._batches += [frame[start:end] for _, start, end in partitions if start >= 0]
        count = sum(len(topic[2]) for topic in request.topics)
        return encode_produce(version, request.topics, [OFFSETS] * count)

    def _tree(self, key: int, request: Any) -> dict[str, Any]:
        if key == VERSIONS:
            keys = [
                {"api_key": api, "min_version": least, "max_version": most}
                for api, (least, most) in VERSION_RANGES.items()
            ]
            return {"error_code": 0, "api_keys": keys}
        if key == CREATE_TOPICS:
            for each in request.topics:
                self._topics[each.name] = uuid4(), each.num_partitions
            return {"topics": [{"name": each.name, "error_code": 0} for each in request.topics]}
        if key == PRODUCER_ID:
            return {"error_code": 0, "producer_id": 1, "producer_epoch": 0}
        names = [each.name for each in request.topics] if request.topics else list(self._topics)
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port}],
            "cluster_id": "floor",
            "controller_id": 1,
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> dict[str, Any]:
        topic_id, count = self._topics.setdefault(name, (uuid4(), DEFAULT_PARTITIONS))
        place = {"leader_id": 1, "leader_epoch": 0, "replica_nodes": (1,), "isr_nodes": (1,)}
        partitions = [{"partition_index": index, **place} for index in range(count)]
        return {"name": name, "topic_id": topic_id, "is_internal": False, "partitions": partitions}


def main() -> None:
    """Print the port, and serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sync", metavar="FILE", help="append to this file and sync it")
    args = parser.parse_args()
    sync = None
    if args.sync is not None:
        sync = os.open(args.sync, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    floor = Floor(sync)
    print(floor.port, flush=True)
    floor.serve()


if __name__ == "__main__":
    main()
