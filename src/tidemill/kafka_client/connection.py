"""One connection to a broker: TLS, login, requests and their responses.

Several requests can be under way. A broker answers them in order. Must not know: ranges,
transactions, Spark.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidemill.errors import ProtocolError
from tidemill.kafka_client import sasl
from tidemill.kafka_client.errors import ConnectionFailedError, ConnectionRejectedError
from tidemill.kafka_client.settings import ConnectionSettings
from tidemill.kafka_codec import connecting as messages

_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}
_FIRST_BUFFER = 64 * 1024
_KEPT_BUFFER = 16 * 1024 * 1024
_SIZE_AND_ID = struct.Struct(">ii")
_SMALL_PART = 16 * 1024
"""Parts of fewer bytes are sent together."""
_MOST_REQUEST = 0x7FFFFFFF

Answer = TypeVar("Answer")
Part = Any
"""Part of a request: bytes, or an object that has the buffer protocol."""


class Connection:
    """A connection that is logged in.

    Args:
        address: Host and port of the broker.
        settings: The settings.
        context: The TLS context; None without TLS.
        timeout_s: Seconds until the connection is given up.
        needs: The least and greatest version of each request that the caller will send.

    Attributes:
        versions: The version of each of these requests that both sides understand.

    Raises:
        ConnectionFailedError: The broker can't be reached, is not one, or is too old.
        ConnectionRejectedError: The broker rejects the credentials, or TLS does not match.
    """

    def __init__(
        self,
        address: tuple[str, int],
        settings: ConnectionSettings,
        context: ssl.SSLContext | None,
        timeout_s: float,
        needs: Mapping[int, tuple[int, int]],
    ) -> None:
        self._address = address
        self._settings = settings
        self._buffer = bytearray(_FIRST_BUFFER)
        self._correlation_id = 0
        self._waits_for: deque[int] = deque()
        self.versions = dict(messages.VERSIONS)
        self._socket = _connect(address, settings, context, timeout_s)
        try:
            self.versions |= self._agree(needs, timeout_s)
            if settings.with_sasl:
                self._log_in(timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def is_busy(self) -> bool:
        """Whether a response is still to come."""
        return bool(self._waits_for)

    @property
    def under_way(self) -> int:
        """The number of requests whose responses are still to come."""
        return len(self._waits_for)

    @property
    def is_open(self) -> bool:
        """Whether the socket was not closed on this side."""
        return self._socket.fileno() >= 0

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def shrink(self) -> None:
        """Give back memory that only very large responses need."""
        if len(self._buffer) > _KEPT_BUFFER:
            self._buffer = bytearray(_FIRST_BUFFER)

    def call(
        self, api: int, body: bytes, timeout_s: float, parse: Callable[[memoryview], Answer]
    ) -> Answer:
        """Send a request and return what its response says. For the rest see ``receive``."""
        assert not self._waits_for
        self.send(api, body)
        return self.receive(timeout_s, parse)

    def send(self, api: int, *body: Part) -> None:
        """Send a request, in the version of ``versions``.

        Args:
            api: The number of the request.
            body: Its body, in parts.

        Raises:
            ConnectionFailedError: The connection is lost.
        """
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = messages.header(
            api, self.versions[api], self._correlation_id, self._settings.client_id
        )
        size = len(head) + sum(memoryview(part).nbytes for part in body)
        if size > _MOST_REQUEST:
            raise ConnectionFailedError(f"{self._name}: a request of {size} bytes is too large")
        self._socket.settimeout(self._settings.request_timeout_ms / 1000)
        small = bytearray(struct.pack(">i", size) + head)
        try:
            for part in body:
                if memoryview(part).nbytes < _SMALL_PART:
                    small += part
                    continue
                self._socket.sendall(small)
                self._socket.sendall(part)
                small.clear()
            if small:
                self._socket.sendall(small)
        except OSError as error:
            raise self._failed("Send failed", error) from error
        self._waits_for.append(self._correlation_id)

    def receive(self, timeout_s: float, parse: Callable[[memoryview], Answer]) -> Answer:
        """Return what the response to the oldest request says.

        Args:
            timeout_s: Seconds to wait.
            parse: Decodes the body, which is valid until the next request.

        Raises:
            ConnectionFailedError: There is no response in time, it is malformed, or the connection
                is lost.
        """
        deadline = time.monotonic() + timeout_s
        received, size = 0, 8
        while received < size:
            if received >= len(self._buffer):
                self._enlarge(size)
            # More than this response can be there only if more than one is under way.
            end = size if len(self._waits_for) > 1 else len(self._buffer)
            received += self._receive_into(received, end, deadline)
            if size == 8 and received >= 8:
                size = self._frame_size()
        if received != size:
            raise ConnectionFailedError(f"{self._name}: a response is longer than announced")
        self._waits_for.popleft()
        try:
            return parse(memoryview(self._buffer)[8:size])
        except ProtocolError as error:
            raise ConnectionFailedError(f"{self._name}: {error}") from error

    def _receive_into(self, at: int, end: int, deadline: float) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionFailedError(f"{self._name}: no response in time")
        try:
            self._socket.settimeout(left)
            count = self._socket.recv_into(memoryview(self._buffer)[at:end])
        except OSError as error:
            raise self._failed("Receive failed", error) from error
        if not count:
            raise ConnectionFailedError(f"{self._name}: Disconnected")
        return count

    def _frame_size(self) -> int:
        length, correlation_id = _SIZE_AND_ID.unpack_from(self._buffer)
        if not 4 <= length <= self._settings.response_bytes:
            raise ConnectionFailedError(
                f"{self._name}: a response of {length} bytes is invalid, or larger than "
                f"receive.message.max.bytes ({self._settings.response_bytes})"
            )
        if not self._waits_for or correlation_id != self._waits_for[0]:
            raise ConnectionFailedError(f"{self._name}: a response belongs to no request")
        return 4 + int(length)

    def _enlarge(self, size: int) -> None:
        """Take more memory, but not much more than the bytes that have come."""
        larger = bytearray(min(size, max(4 * len(self._buffer), 1024 * 1024)))
        larger[: len(self._buffer)] = self._buffer
        self._buffer = larger

    def _agree(self, needs: Mapping[int, tuple[int, int]], timeout_s: float) -> dict[int, int]:
        error, found = self.call(messages.API_VERSIONS, b"", timeout_s, messages.parse_api_versions)
        agreed = {}
        for api, (our_least, our_most) in needs.items():
            least, most = found.get(api, (0, -1))
            agreed[api] = min(most, our_most)
            if error or agreed[api] < max(least, our_least):
                name = messages.NAMES.get(api, f"request {api}")
                raise ConnectionFailedError(
                    f"{self._name}: the broker's {name} versions {least} to {most} are not "
                    "supported"
                )
        return agreed

    def _log_in(self, timeout_s: float) -> None:
        s = self._settings
        error, mechanisms = self.call(
            messages.SASL_HANDSHAKE,
            messages.sasl_handshake(s.mechanism),
            timeout_s,
            messages.parse_sasl_handshake,
        )
        if error:
            raise ConnectionRejectedError(
                f"{self._name}: the broker does not support the SASL mechanism {s.mechanism}; it "
                f"supports {', '.join(mechanisms)}"
            )
        if s.mechanism == "PLAIN":
            self._authenticate(sasl.plain(s.username, s.password), timeout_s)
            return
        algorithm = "sha256" if s.mechanism == "SCRAM-SHA-256" else "sha512"
        scram = sasl.Scram(algorithm, s.username, s.password)
        challenge = self._authenticate(scram.first(), timeout_s)
        scram.check(self._authenticate(scram.final(challenge), timeout_s))

    def _authenticate(self, message: bytes, timeout_s: float) -> bytes:
        body = messages.sasl_authenticate(message)
        error, text, answer = self.call(
            messages.SASL_AUTHENTICATE, body, timeout_s, messages.parse_sasl_authenticate
        )
        if error:
            raise ConnectionRejectedError(f"{self._name}: SASL authentication failed: {text}")
        return answer

    @property
    def _name(self) -> str:
        return _name(self._address)

    def _failed(self, what: str, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"{self._name}: {what}: {error.strerror or error}")


def _name(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _connect(
    address: tuple[str, int],
    settings: ConnectionSettings,
    context: ssl.SSLContext | None,
    timeout_s: float,
) -> socket.socket:
    """Return a socket that is connected to the first address of the host that answers."""
    host, port = address
    timeout_s = min(timeout_s, settings.setup_timeout_ms / 1000)
    try:
        found = socket.getaddrinfo(host, port, _FAMILIES[settings.family], socket.SOCK_STREAM)
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionFailedError(f"{_name(address)}: Failed to resolve: {reason}") from error
    last: OSError | None = None
    for family, kind, protocol, _, resolved in found:
        plain = socket.socket(family, kind, protocol)
        try:
            _set_options(plain, settings)
            plain.settimeout(timeout_s)
            plain.connect(resolved)
            return plain if context is None else _wrap(plain, context, address)
        except OSError as error:
            plain.close()
            last = error
        except BaseException:
            plain.close()
            raise
    reason = "no address" if last is None else last.strerror or last
    raise ConnectionFailedError(f"{_name(address)}: Connect failed: {reason}") from last


def _set_options(plain: socket.socket, settings: ConnectionSettings) -> None:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.keepalive:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
    if settings.send_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)


def _wrap(plain: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except ssl.SSLCertVerificationError as error:
        raise ConnectionRejectedError(
            f"{_name(address)}: SSL handshake failed: the certificate is not valid here: "
            f"{error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise ConnectionRejectedError(
            f"{_name(address)}: SSL handshake failed: {error.reason or error}"
        ) from error
