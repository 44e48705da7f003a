"""A producer of the newer protocol (KIP-890), which librdkafka does not support yet.

It adds no partitions to a transaction by a request, and gets a new epoch at each end. It repeats a
request over a new connection until it has an answer. Knows one broker and one producer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from tidemill.kafka_codec.headers import parse_response_header, request_header
from tidemill.kafka_codec.messages import decode_response, encode_request
from tidemill.log.format.records import NewRecord, encode_batch

PRODUCE, INIT, END, COMMIT = 0, 22, 26, 28
TIMEOUT_S = 60
VERSIONS = {PRODUCE: 12, INIT: 5, END: 5, COMMIT: 5}
PASSING = {6, 7, 14, 15, 16, 19, 51}
"""Error codes that clients retry."""


class RefusedError(Exception):
    """The broker answered with this error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ImplicitProducer:
    """Blocks; use it from one thread.

    Args:
        may_return: event to wait for before a lost connection is opened again.
    """

    def __init__(
        self, bootstrap: str, transactional_id: str, may_return: threading.Event | None = None
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self._id = transactional_id
        self._may_return = may_return
        self._socket: socket.socket | None = None
        self._number = 0
        self._identity = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self) -> None:
        """Fence predecessors."""
        answer = self._ask(
            INIT, {"transactional_id": self._id, "transaction_timeout": 60_000, **self._who(-1, -1)}
        )
        self._become(answer)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Write a record and wait until it is on disk."""
        place = topic, partition
        sequence = self._sequences.get(place, 0)
        records = encode_batch(
            [NewRecord(None, value)],
            timestamp_ms=time.time_ns() // 1_000_000,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        part = {"index": partition, "records": bytes(records)}
        data = [{"name": topic, "partition_data": [part]}]
        self._ask(
            PRODUCE,
            {"transactional_id": self._id, "acks": -1, "timeout": 10_000, "topic_data": data},
        )
        self._sequences[place] = sequence + 1

    def commit_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 as part of the transaction."""
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        self._ask(
            COMMIT,
            {
                "transactional_id": self._id,
                "group_id": group,
                **self._who(*self._identity),
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": topic, "partitions": [part]}],
            },
        )

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction (EndTxn)."""
        tree = {"transactional_id": self._id, **self._who(*self._identity), "committed": commit}
        self._become(self._ask(END, tree))

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _who(producer_id: int, epoch: int) -> dict[str, int]:
        return {"producer_id": producer_id, "producer_epoch": epoch}

    def _become(self, answer: Mapping[str, Any]) -> None:
        self._identity = answer["producer_id"], answer["producer_epoch"]
        self._sequences.clear()

    def _ask(self, api_key: int, tree: Mapping[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                answer = self._exchange(api_key, tree)
                codes = set(_codes(answer)) - {0}
                if not codes:
                    return answer
                if not codes <= PASSING:
                    raise RefusedError(max(codes))
            assert time.monotonic() < deadline, f"no answer to {api_key}"
            time.sleep(0.01)

    def _exchange(self, api_key: int, tree: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, 10)
            self._number += 1
            version = VERSIONS[api_key]
            body = encode_request(api_key, version, tree)
            head = request_header(api_key, version, self._number, "implicit")
            self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            (length,) = struct.unpack(">i", self._receive(self._socket, 4))
            answer = self._receive(self._socket, length)
            number, position = parse_response_header(answer, api_key, version)
            response: dict[str, Any] = decode_response(api_key, version, answer, position).as_tree()
        except OSError:
            self.close()
            if self._may_return is not None:
                assert self._may_return.wait(TIMEOUT_S), "the event that lets it return was not set"
            raise
        assert number == self._number
        return response

    @staticmethod
    def _receive(connection: socket.socket, length: int) -> bytes:
        data = b""
        while len(data) < length:
            chunk = connection.recv(length - len(data))
            if not chunk:
                raise ConnectionError("closed")
            data += chunk
        return data


def _codes(tree: Any) -> list[int]:
    """Return all error codes in an answer."""
    if isinstance(tree, Mapping):
        own = [int(tree["error_code"])] if "error_code" in tree else []
        return own + [code for each in tree.values() for code in _codes(each)]
    if isinstance(tree, list | tuple):
        return [code for each in tree for code in _codes(each)]
    return []
