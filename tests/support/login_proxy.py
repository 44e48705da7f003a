"""A server before a broker that demands a login: SASL with PLAIN or SCRAM, also within TLS.

After the login it passes all bytes on, so every client and every command works through it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.fake_broker import API_VERSIONS, AUTHENTICATE, HANDSHAKE, ScramServer
from tidemill.kafka_codec.headers import parse_header
from tidemill.kafka_codec.messages import decode_request, decode_response, encode_response

USER, PASSWORD = "alice", "secret"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass
class LoginProxy:
    """The server. ``port`` is where it listens, and ``target`` the port of the broker behind it.

    Attributes:
        logins: The mechanism of each login that succeeded.
    """

    port: int
    tls: ssl.SSLContext | None = None
    target: int = 0
    logins: list[str] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def serve(self, accepted: socket.socket) -> None:
        """Serve one connection until one side closes it."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client = self.tls.wrap_socket(accepted, server_side=True) if self.tls else accepted
            stack.enter_context(client)
            broker = stack.enter_context(socket.create_connection(("127.0.0.1", self.target)))
            if self._log_in(client, broker):
                threading.Thread(target=_pass_on, args=(broker, client), daemon=True).start()
                _pass_on(client, broker)

    def _log_in(self, client: socket.socket, broker: socket.socket) -> bool:
        """Return whether the client has logged in. Requests of anything else end the connection."""
        mechanism, scram = "", ScramServer(PASSWORD, "sha256")
        while frame := _read(client):
            api, version, correlation_id = struct.unpack_from(">hhi", frame)
            position = parse_header(frame, api, version)[1]
            if api == API_VERSIONS:
                _write(broker, frame)
                _write(client, _with_sasl(_read(broker), version))
                continue
            if api == HANDSHAKE:
                mechanism = decode_request(api, version, frame, position).mechanism
                error = 0 if mechanism in MECHANISMS else 33
                body = bytes(
                    encode_response(api, version, {"error_code": error, "mechanisms": MECHANISMS})
                )
                scram = ScramServer(PASSWORD, mechanism[6:].lower().replace("-", "") or "sha256")
            elif api == AUTHENTICATE and mechanism == "PLAIN":
                sent = decode_request(api, version, frame, position).auth_bytes
                if sent != f"\0{USER}\0{PASSWORD}".encode():
                    mechanism = ""
                tree = {
                    "error_code": 0 if mechanism else 58,
                    "error_message": "invalid credentials",
                }
                body = bytes(encode_response(api, version, tree))
            elif api == AUTHENTICATE:
                body = scram(frame[position:])
            else:
                return False
            _write(client, struct.pack(">i", correlation_id) + body)
            if api == AUTHENTICATE and (mechanism == "PLAIN" or scram.accepted):
                self.logins.append(mechanism)
                return True
        return False


def _with_sasl(frame: bytes, version: int) -> bytes:
    """Return an ApiVersions response that offers the login, too."""
    tree = decode_response(API_VERSIONS, version, frame, 4).as_tree()
    login = {HANDSHAKE: 1, AUTHENTICATE: 0}
    tree["api_keys"] = [each for each in tree["api_keys"] if each["api_key"] not in login]
    tree["api_keys"] += [
        {"api_key": api, "min_version": 0, "max_version": newest} for api, newest in login.items()
    ]
    return frame[:4] + bytes(encode_response(API_VERSIONS, version, tree))


def _read(connection: socket.socket) -> bytes:
    head = _exactly(connection, 4)
    return _exactly(connection, int.from_bytes(head, "big")) if head else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def _write(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def login_proxy(tls: ssl.SSLContext | None = None) -> Iterator[LoginProxy]:
    """Run the server. Set ``target`` before a client comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = LoginProxy(listening.getsockname()[1], tls)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    threading.Thread(target=proxy.serve, args=(accepted,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield proxy
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
