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
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    TlsRejectedError,
    VersionNotSupportedError,
)
from tidemill.kafka_client.settings import OAUTHBEARER, Address, ConnectionSettings
from tidemill.kafka_codec.declared import (
    API_VERSIONS,
    DECLARED,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidemill.kafka_codec.headers import parse_response_header, request_header
from tidemill.kafka_codec.messages import Tree, decode_response, encode_request

_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}
_FIRST_BUFFER = 64 * 1024
_KEPT_BUFFER = 16 * 1024 * 1024
_SIZE_AND_ID = struct.Struct(">ii")
_SMALL_PART = 16 * 1024
"""Parts of fewer bytes are sent together."""
_MOST_REQUEST = 0x7FFFFFFF
_BEFORE_LOGIN = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)

Answer = TypeVar("Answer")
Versions = Mapping[int, tuple[int, int]]
"""The least and greatest version of requests."""
Part = Any
"""Part of a request: bytes, or an object that has the buffer protocol."""


class Connection:
    """A connection that is logged in.

    Args:
        timeout_s: Seconds until the connection is given up.
        needs: The versions of each request that the caller will send, for ``agree``.

    Attributes:
        versions: The version of each of these requests that both sides understand.

    Raises:
        ConnectionFailedError: The broker can't be reached, is not one, or is too old.
        ConnectionRejectedError: The broker rejects the credentials, or TLS does not match.
    """

    def __init__(
        self,
        address: Address,
        settings: ConnectionSettings,
        context: ssl.SSLContext | None,
        timeout_s: float,
        needs: Versions,
    ) -> None:
        self._address = address
        self._settings = settings
        self._buffer = bytearray(_FIRST_BUFFER)
        self._correlation_id = 0
        self._waits_for: deque[tuple[int, int, int]] = deque()  # correlation id, API, version
        self.versions = {api: DECLARED[api][-1] for api in _BEFORE_LOGIN}
        self._socket = _connect(address, settings, context, timeout_s)
        try:
            self._offered = self._ask_versions(timeout_s)
            self.agree(needs)
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

    def agree(self, needs: Versions) -> None:
        """Choose the version of requests: the newest one that both sides understand.

        Args:
            needs: The least and greatest version of each request that the caller knows.

        Raises:
            VersionNotSupportedError: The broker knows none of them.
        """
        for api, (our_least, our_most) in needs.items():
            least, most = self._offered.get(api, (0, -1))
            if min(most, our_most) < max(least, our_least):
                raise VersionNotSupportedError(str(self._address), api, least, most)
            self.versions[api] = min(most, our_most)

    def request(self, api: int, tree: Tree, timeout_s: float) -> Any:
        """Send a request and return its response.

        Args:
            tree: The request, as ``kafka_codec.messages`` takes it.

        Returns:
            A ``Message`` of ``kafka_codec``.
        """
        assert not self._waits_for
        version = self.versions[api]
        self.send(api, encode_request(api, version, tree))
        return self.receive(timeout_s, lambda view: decode_response(api, version, view, 0))

    def send(self, api: int, *body: Part) -> None:
        """Send a request, in the version of ``versions``."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        version = self.versions[api]
        head = request_header(api, version, self._correlation_id, self._settings.client_id)
        size = len(head) + sum(memoryview(part).nbytes for part in body)
        if size > _MOST_REQUEST:
            raise ConnectionFailedError(f"{self._address}: a request of {size} bytes is too large")
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
        self._waits_for.append((self._correlation_id, api, version))

    def receive(self, timeout_s: float, parse: Callable[[memoryview], Answer]) -> Answer:
        """Return what the response to the oldest request says.

        Args:
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
            raise ConnectionFailedError(f"{self._address}: a response is longer than announced")
        _, api, version = self._waits_for.popleft()
        frame = memoryview(self._buffer)[4:size]
        try:
            _, body = parse_response_header(frame, api, version)
            return parse(frame[body:])
        except ProtocolError as error:
            raise ConnectionFailedError(
                f"{self._address}: a response is malformed: {error}"
            ) from error

    def _receive_into(self, at: int, end: int, deadline: float) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionFailedError(f"{self._address}: no response in time")
        try:
            self._socket.settimeout(left)
            count = self._socket.recv_into(memoryview(self._buffer)[at:end])
        except OSError as error:
            raise self._failed("Receive failed", error) from error
        if not count:
            raise ConnectionFailedError(f"{self._address}: Disconnected")
        return count

    def _frame_size(self) -> int:
        length, correlation_id = _SIZE_AND_ID.unpack_from(self._buffer)
        if not 4 <= length <= self._settings.response_bytes:
            raise ConnectionFailedError(
                f"{self._address}: a response of {length} bytes is invalid, or larger than "
                f"receive.message.max.bytes ({self._settings.response_bytes})"
            )
        if not self._waits_for or correlation_id != self._waits_for[0][0]:
            raise ConnectionFailedError(f"{self._address}: a response belongs to no request")
        return 4 + int(length)

    def _enlarge(self, size: int) -> None:
        """Take more memory, but not much more than the bytes that have come."""
        larger = bytearray(min(size, max(4 * len(self._buffer), 1024 * 1024)))
        larger[: len(self._buffer)] = self._buffer
        self._buffer = larger

    def _ask_versions(self, timeout_s: float) -> dict[int, tuple[int, int]]:
        found = self.request(API_VERSIONS, {}, timeout_s)
        if found.error_code:
            raise ConnectionFailedError(f"{self._address}: the broker does not name its versions")
        return {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}

    def _log_in(self, timeout_s: float) -> None:
        s = self._settings
        found = self.request(SASL_HANDSHAKE, {"mechanism": s.mechanism}, timeout_s)
        if found.error_code:
            raise ConnectionRejectedError(
                f"{self._address}: the broker does not support the SASL mechanism {s.mechanism}; "
                f"it supports {', '.join(found.mechanisms)}"
            )
        from tidemill.kafka_client import sasl  # a command without a login starts faster

        if s.mechanism == "PLAIN":
            self._authenticate(sasl.plain(s.username, s.password), timeout_s)
            return
        if s.mechanism == OAUTHBEARER:
            if self._authenticate(sasl.oauthbearer(*self._token()), timeout_s):
                self._authenticate(sasl.CONFIRMATION, timeout_s)
                raise ConnectionRejectedError(f"{self._address}: the token was refused")
            return
        algorithm = "sha256" if s.mechanism == "SCRAM-SHA-256" else "sha512"
        scram = sasl.Scram(algorithm, s.username, s.password)
        challenge = self._authenticate(scram.first(), timeout_s)
        scram.check(self._authenticate(scram.final(challenge), timeout_s))

    def _token(self) -> tuple[str, Mapping[str, str]]:
        """Return the token and the extensions that the user's function returns."""
        assert self._settings.tokens is not None
        try:
            token, _, *more = self._settings.tokens("")
            return str(token), dict(more[1]) if len(more) > 1 else {}
        except Exception as error:
            raise ConnectionFailedError(f"{self._address}: oauth_cb failed: {error}") from error

    def _authenticate(self, message: bytes, timeout_s: float) -> bytes:
        found = self.request(SASL_AUTHENTICATE, {"auth_bytes": message}, timeout_s)
        if found.error_code:
            raise ConnectionRejectedError(
                f"{self._address}: SASL authentication failed: {found.error_message}"
            )
        answer: bytes = found.auth_bytes
        return answer

    def _failed(self, what: str, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"{self._address}: {what}: {error.strerror or error}")


def _connect(
    address: Address,
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
        raise ConnectionFailedError(f"{address}: Failed to resolve: {reason}") from error
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
    raise ConnectionFailedError(f"{address}: Connect failed: {reason}") from last


def _set_options(plain: socket.socket, settings: ConnectionSettings) -> None:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.keepalive:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
    if settings.send_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)


def _wrap(plain: socket.socket, context: ssl.SSLContext, address: Address) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except ssl.SSLCertVerificationError as error:
        raise TlsRejectedError(
            f"{address}: SSL handshake failed: the certificate is not valid here: "
            f"{error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise TlsRejectedError(
            f"{address}: SSL handshake failed: {error.reason or error}"
        ) from error
