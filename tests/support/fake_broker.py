"""A broker that answers as a test says, and speaks just enough of the Kafka protocol."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

FETCH, LIST_OFFSETS, METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 1, 2, 3, 17, 18, 36
CLOSE = b"close"
"""Instead of an answer: the connection is closed."""

Answer = Callable[[bytes], bytes]


def text(value: str) -> bytes:
    """Encode a string."""
    return struct.pack(">h", len(value.encode())) + value.encode()


def fetched(records: bytes | bytearray = b"", *, error: int = 0, end: int = 100) -> bytes:
    """Return a Fetch response, version 10, for partition 0 of topic t."""
    head = (
        struct.pack(">ihii", 0, 0, 0, 1)
        + text("t")
        + struct.pack(">iihqqq", 1, 0, error, end, end, 0)
    )
    return head + struct.pack(">i", -1) + struct.pack(">i", len(records)) + records


@dataclass
class FakeBroker:
    """Answers by the number of the API. ``answers`` replaces what a healthy broker says.

    Attributes:
        requests: The number of each request and its body, in order.
        answers: By API: the answers, in order; the last one is repeated. Bytes or a function.
    """

    port: int = 0
    requests: list[tuple[int, bytes]] = field(default_factory=list)
    answers: dict[int, list[bytes | Answer]] = field(default_factory=dict)
    connections: int = 0

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def asked(self, api: int) -> list[bytes]:
        """Return the bodies of the requests of one API."""
        return [body for each, body in self.requests if each == api]

    def answer(self, api: int, body: bytes) -> bytes:
        """Return the answer to a request."""
        self.requests.append((api, body))
        scripted = self.answers.get(api)
        if scripted:
            found = scripted.pop(0) if len(scripted) > 1 else scripted[0]
            return found if isinstance(found, bytes) else found(body)
        if api == API_VERSIONS:
            versions = ((FETCH, 4, 16), (LIST_OFFSETS, 1, 10), (METADATA, 0, 12))
            return struct.pack(">hi9h", 0, len(versions), *(n for each in versions for n in each))
        if api == METADATA:
            return self.metadata()
        return fetched()

    def metadata(self, error: int = 0, partition_error: int = 0) -> bytes:
        """Return a Metadata response, version 4, for topic t with one partition."""
        broker = struct.pack(">ii", 0, 1) + struct.pack(">i", 1) + text("127.0.0.1")
        broker += struct.pack(">ih", self.port, -1) + struct.pack(">hi", -1, 1)
        topic = struct.pack(">ih", 1, error) + text("t") + b"\0"
        if error:
            return broker + topic + struct.pack(">i", 0)
        partition = struct.pack(">ihii", 1, partition_error, 0, 1) + struct.pack(
            ">iiii", 1, 1, 1, 1
        )
        return broker + topic + partition


@contextlib.contextmanager
def fake_broker() -> Iterator[FakeBroker]:
    """Run a fake broker."""
    broker = FakeBroker()
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker.port = server.getsockname()[1]
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                accepted.append(connection)
                broker.connections += 1
                threading.Thread(target=serve, args=(broker, connection), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield broker
        server.shutdown(socket.SHUT_RDWR)
        for connection in accepted:
            connection.close()
        thread.join(60)


def serve(broker: FakeBroker, connection: socket.socket) -> None:
    """Answer the requests of one connection."""
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while head := stream.read(4):
            frame = stream.read(int.from_bytes(head, "big"))
            api, _, correlation_id, name = struct.unpack_from(">hhih", frame)
            answer = broker.answer(api, frame[10 + name :])
            if answer == CLOSE:
                connection.shutdown(socket.SHUT_RDWR)
                return
            connection.sendall(struct.pack(">ii", 4 + len(answer), correlation_id) + answer)


class ScramServer:
    """The broker's side of SCRAM (RFC 5802).

    Args:
        password: The password of the user ``alice``.
        algorithm: ``sha256`` or ``sha512``.

    Attributes:
        accepted: Whether the client has proved that it knows the password.
    """

    def __init__(self, password: str, algorithm: str, *, knows_password: bool = True) -> None:
        self._salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), b"salt", 4096)
        self._algorithm = algorithm
        self._knows = knows_password
        self._first = self._server_first = ""
        self.accepted = False

    def __call__(self, body: bytes) -> bytes:
        message = body[4:].decode()
        if message.startswith("n,,"):
            self._first = message[3:]
            nonce = self._first.partition(",r=")[2] + "server"
            self._server_first = f"r={nonce},s={base64.b64encode(b'salt').decode()},i=4096"
            return self._answer(self._server_first)
        without_proof, _, proof = message.rpartition(",p=")
        signed = f"{self._first},{self._server_first},{without_proof}".encode()
        key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._algorithm, key).digest(), signed)
        expected = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            return struct.pack(">h", 58) + text("invalid credentials") + struct.pack(">i", 0)
        self.accepted = True
        server_key = self._hmac(self._salted if self._knows else b"", b"Server Key")
        return self._answer(f"v={base64.b64encode(self._hmac(server_key, signed)).decode()}")

    def _answer(self, message: str) -> bytes:
        return struct.pack(">hhi", 0, -1, len(message)) + message.encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._algorithm)
