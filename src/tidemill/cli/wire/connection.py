"""A connection to one broker: sends a request, waits for its response.

The user chose the broker, but the length of its responses is limited all the same. Knows no
cluster, and no API except ApiVersions.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemill.cli.client import CONNECT_SECONDS, REQUEST_SECONDS
from tidemill.errors import ProtocolError, UnreachableError
from tidemill.protocols.kafka.errors import UnsupportedVersionError

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
CLIENT_ID = "tidemill-cli"
API_VERSIONS = 18


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """A socket, and the versions that the broker at its other end supports.

    Raises:
        UnreachableError: the broker does not accept a connection.
    """

    def __init__(self, broker: Address, tls: ssl.SSLContext | None) -> None:
        self._broker = broker
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        try:
            self._socket = socket.create_connection(broker, CONNECT_SECONDS)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=broker.host)
        except OSError as error:
            raise self._unreachable(error) from error
        self._socket.settimeout(REQUEST_SECONDS)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def version(self, api_key: int, versions: range) -> int:
        """Return the newest of ``versions`` that the broker supports.

        Raises:
            UnsupportedVersionError: it supports none of them.
            UnreachableError: it does not respond.
        """
        if not self._versions:
            response = self._exchange(API_VERSIONS, 0, {})
            self._versions = {
                each["api_key"]: range(each["min_version"], each["max_version"] + 1)
                for each in response["api_keys"]
            }
        known = self._versions.get(api_key, range(0))
        common = [version for version in versions if version in known]
        if not common:
            from tidemill.kafka_codec.schema import api_name

            raise UnsupportedVersionError(
                f"the broker at {self._broker} does not support {api_name(api_key)}",
                hint="Apache Kafka does since 3.0.",
            )
        return max(common)

    def request(self, api_key: int, versions: range, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the response, both as trees of kio's field names.

        Raises:
            UnsupportedVersionError: the broker supports none of ``versions``.
            UnreachableError: it does not respond.
            ProtocolError: its response is invalid.
        """
        return self._exchange(api_key, self.version(api_key, versions), tree)

    def _exchange(self, api_key: int, version: int, tree: Mapping[str, Any]) -> dict[str, Any]:
        # Imported here: most commands need no codec, and it takes time to load.
        from tidemill.kafka_codec.headers import frame_request, parse_response_header
        from tidemill.kafka_codec.messages import decode_response, encode_request

        self._correlation_id += 1
        body = encode_request(api_key, version, tree)
        frame = self._send(frame_request(api_key, version, self._correlation_id, CLIENT_ID, body))
        try:
            correlation_id, position = parse_response_header(frame, api_key, version)
            response = decode_response(api_key, version, frame, position)
        except ProtocolError as error:
            raise self._invalid(str(error)) from error
        if correlation_id != self._correlation_id:
            raise self._invalid(
                f"it is for request {correlation_id}, expected {self._correlation_id}"
            )
        found: dict[str, Any] = response.as_tree()
        return found

    def _send(self, frame: bytes) -> bytes:
        """Send a request; return the response without its length."""
        try:
            self._socket.sendall(frame)
            (length,) = struct.unpack(">i", self._receive(4))
            if not 0 <= length <= MAX_RESPONSE_BYTES:
                raise self._invalid(f"it has {length} bytes")
            return self._receive(length)
        except OSError as error:
            raise self._unreachable(error) from error

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = self._socket.recv(min(length - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError("it closed the connection")
            data += chunk
        return bytes(data)

    def _invalid(self, reason: str) -> ProtocolError:
        return ProtocolError(f"invalid response of the broker at {self._broker}: {reason}")

    def _unreachable(self, error: OSError) -> UnreachableError:
        reason = str(error.strerror or error).lower()
        return UnreachableError(
            f"no broker answers at {self._broker} ({reason})",
            hint="The cluster named this address; the one given with -b may be another."
            if not isinstance(error, ssl.SSLError)
            else "Set -X ssl.ca.location=FILE to the certificate that signed the broker's.",
        )
