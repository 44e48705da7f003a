"""Finds out what a server at an address speaks, to explain why a client gets no answer from it.

It asks once without TLS, and once with it if there was no answer. This module must not know
librdkafka or the broker.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
import struct
from collections.abc import Mapping

from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    UnsupportedSettingError,
)
from tidemill.kafka_client.named import unreachable_names
from tidemill.kafka_client.settings import Address, addresses, connection_settings
from tidemill.kafka_client.tls import make_context

TIMEOUT_S = 3.0
_CORRELATION_ID = 0x7469
_API_VERSIONS = struct.pack(">hhih", 18, 0, _CORRELATION_ID, -1)
"""A request that every Kafka-compatible broker answers before a client has logged in."""


class Protocol(enum.Enum):
    """The protocol that a server speaks."""

    KAFKA = enum.auto()
    TLS = enum.auto()
    OTHER = enum.auto()


def who_answers(host: str, port: int) -> Protocol | None:
    """Return what the server speaks, or None if no connection is accepted."""
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as plain:
            if _speaks_kafka(plain):
                return Protocol.KAFKA
        with socket.create_connection((host, port), TIMEOUT_S) as plain:
            return Protocol.TLS if _speaks_tls(plain) else Protocol.OTHER
    except OSError:
        return None


def _speaks_kafka(connection: socket.socket) -> bool:
    try:
        connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
        answer = b""
        while len(answer) < 8 and (chunk := connection.recv(8 - len(answer))):
            answer += chunk
    except OSError:
        return False
    return answer[4:] == struct.pack(">i", _CORRELATION_ID)


def _speaks_tls(connection: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        # An alert is an answer in TLS, for example that the client has no certificate.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def explain(
    servers: str, properties: Mapping[str, str], prefix: str = "", *, only_certain: bool = False
) -> tuple[str, str] | None:
    """Say why the servers don't answer a client that has these properties.

    Args:
        servers: addresses with commas, as in ``bootstrap.servers``.
        prefix: what a user writes before the name of a property, as ``-X``.
        only_certain: leave out what needs a failed request as a proof: a broker that is too busy to
            answer looks like another server, and a client may know certificates that Python
            does not.

    Returns:
        What is wrong, and which property to change; None if nothing was found.
    """
    with_tls = properties.get("security.protocol", "plaintext").lower() in ("ssl", "sasl_ssl")
    for where in addresses(servers):
        host, port = where
        match who_answers(host, port), with_tls:
            case Protocol.TLS, False:
                return (
                    f"the server at {where} speaks TLS, and this client does not",
                    f"It may be a broker with TLS: set {prefix}security.protocol=SSL, and "
                    f"{prefix}ssl.ca.location=FILE to the certificate that signed the broker's.",
                )
            case Protocol.TLS, True if not only_certain:
                reason = _certificate_problem(host, port, properties)
                if reason:
                    return (
                        f"no TLS connection to {where}: {reason}",
                        f"Set {prefix}ssl.ca.location=FILE to the certificate that signed the "
                        "broker's, and use a host name that is in the broker's certificate.",
                    )
            case Protocol.KAFKA, True:
                return (
                    f"the broker at {where} does not speak TLS, and this client does",
                    f"Leave out {prefix}security.protocol, or use the address of a listener that "
                    "does.",
                )
            case Protocol.OTHER, _ if not only_certain:
                return (
                    f"the server at {where} is not a Kafka-compatible broker",
                    "Check host and port.",
                )
    return None if only_certain else _wrong_names(servers, properties)


def _wrong_names(servers: str, properties: Mapping[str, str]) -> tuple[str, str] | None:
    """Say that a broker sends its clients to addresses where none answers, if it does."""
    try:
        given = {**properties, "bootstrap.servers": servers}
        found = unreachable_names(connection_settings(given, "tidemill"), TIMEOUT_S)
    except (UnsupportedSettingError, ConnectionFailedError, ConnectionRejectedError, OSError):
        return None
    return None if found is None else wrong_names(servers, *found)


def wrong_names(servers: str, address: Address, reason: str) -> tuple[str, str]:
    """Return the text and the hint about an address that brokers give to their clients."""
    return (
        f"the broker at {servers} sends clients to {address}, where no broker answers: {reason}",
        "Set the broker's kafka.advertised_host and kafka.advertised_port (advertised.listeners of "
        "Apache Kafka) to what this client can reach.",
    )


def accepts_tls(servers: str, properties: Mapping[str, str]) -> bool:
    """Return whether a server accepts a verified TLS connection, without asking it anything else.

    Args:
        servers: addresses with commas, as in ``bootstrap.servers``.
    """
    for host, port in addresses(servers):
        with contextlib.suppress(OSError, UnsupportedSettingError, ConnectionFailedError):
            _connect_with_tls(host, port, properties)
            return True
    return False


def _connect_with_tls(host: str, port: int, properties: Mapping[str, str]) -> None:
    without_login = {**properties, "security.protocol": "ssl"}
    context = make_context(connection_settings(without_login, ""))
    with (
        socket.create_connection((host, port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


def _certificate_problem(host: str, port: int, properties: Mapping[str, str]) -> str:
    """Return why a verified TLS connection fails; an empty string if it does not."""
    try:
        _connect_with_tls(host, port, properties)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not valid here: {error.verify_message.rstrip('.')}"
    except UnsupportedSettingError:
        return ""  # what librdkafka does with it is not known here
    except OSError as error:
        return str(error.strerror or error).lower()
    return ""
