"""Translates librdkafka's settings of connections, and says which settings a client understands.

A setting with a value that the tables do not know is left to librdkafka, which accepts it or
explains what is wrong. Must not know: sockets, Spark, queries. Source: librdkafka's
CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill.kafka_client.errors import UnsupportedSettingError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms of SASL that the client speaks, with a password."""
OAUTHBEARER = "OAUTHBEARER"
"""It also speaks this one, if a program gives it tokens. Options can't: librdkafka asks issuers."""
_TOKENS = "oauth_cb"
"""The setting of confluent-kafka for a function that returns a token, and when it expires."""

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(servers: str) -> Iterator[Address]:
    """Yield the addresses in ``bootstrap.servers``. Malformed ones are left out."""
    for address in servers.split(","):
        host, colon, port = address.strip().rpartition("://")[2].rpartition(":")
        if not colon:
            host, port = port, str(DEFAULT_PORT)
        if host and port.isascii() and port.isdigit() and int(port) < 65_536:
            yield Address(host.strip("[]"), int(port))


TokenSource = Callable[[str], tuple[Any, ...]]
"""Returns a token, the time when it expires, and perhaps the principal and extensions (KIP-342)."""
Parse = Callable[[str], Any]
Table = Mapping[str, tuple[str, Parse]]
"""Settings: the field that each of them sets, and how to parse its value."""


def integer(least: int, most: int) -> Parse:
    """Return a parser of integers within bounds, and nothing else."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,12}", text):
            raise ValueError(text)
        number = int(text)
        if not least <= number <= most:
            raise ValueError(text)
        return number

    return parse


def boolean(text: str) -> bool:
    """Return a boolean, in each spelling that librdkafka knows."""
    return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[
        text.lower()
    ]


def one_of(*words: str) -> Parse:
    """Return a parser of some words. Case does not matter."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return parse


def only(parse: Parse, wanted: object) -> Parse:
    """Return a parser that accepts only one value."""

    def check(text: str) -> object:
        if (value := parse(text)) != wanted:
            raise ValueError(text)
        return value

    return check


def text(text: str) -> str:
    """Return any text unchanged."""
    return text


def _mechanism(text: str) -> str:
    if text.upper() not in (*MECHANISMS, OAUTHBEARER):
        raise ValueError(text)
    return text.upper()


def _token_source(value: Any) -> TokenSource:
    if not callable(value):
        raise TypeError(value)
    return value  # type: ignore[no-any-return]


def _parsed(name: str, parse_value: Parse, value: Any) -> Any:
    return parse_value(value if name == _TOKENS else str(value))


def _servers(text: str) -> tuple[Address, ...]:
    found = tuple(addresses(text))
    if not found or len(found) != len(text.split(",")):
        raise ValueError(text)
    return found


CONNECTION: Table = {
    "bootstrap.servers": ("servers", _servers),
    "client.id": ("client_id", text),
    "receive.message.max.bytes": ("response_bytes", integer(1000, 2_147_483_647)),
    "socket.timeout.ms": ("request_timeout_ms", integer(10, 300_000)),
    "socket.connection.setup.timeout.ms": ("setup_timeout_ms", integer(1000, 2_147_483_647)),
    "socket.receive.buffer.bytes": ("receive_buffer", integer(0, 100_000_000)),
    "socket.send.buffer.bytes": ("send_buffer", integer(0, 100_000_000)),
    "socket.keepalive.enable": ("keepalive", boolean),
    "broker.address.family": ("family", one_of("any", "v4", "v6")),
    "security.protocol": ("protocol", one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    "sasl.mechanism": ("mechanism", _mechanism),
    "sasl.mechanisms": ("mechanism", _mechanism),
    "sasl.username": ("username", text),
    "sasl.password": ("password", text),
    _TOKENS: ("tokens", _token_source),
    "ssl.ca.location": ("ca_location", text),
    "ssl.ca.pem": ("ca_pem", text),
    "ssl.crl.location": ("crl_location", text),
    "ssl.cipher.suites": ("ciphers", text),
    "ssl.certificate.location": ("certificate_location", text),
    "ssl.certificate.pem": ("certificate_pem", text),
    "ssl.key.location": ("key_location", text),
    "ssl.key.pem": ("key_pem", text),
    "ssl.key.password": ("key_password", text),
    "enable.ssl.certificate.verification": ("verify", boolean),
    "ssl.endpoint.identification.algorithm": ("identification", one_of("none", "https")),
}
"""Settings of connections."""

WITHOUT_EFFECT: Mapping[str, Parse] = {
    "metadata.max.age.ms": integer(1, 86_400_000),
    "topic.metadata.refresh.interval.ms": integer(-1, 3_600_000),
    "topic.metadata.refresh.fast.interval.ms": integer(1, 60_000),
    "topic.metadata.refresh.sparse": boolean,
    "statistics.interval.ms": integer(0, 86_400_000),
    "connections.max.idle.ms": integer(0, 2_147_483_647),
    "socket.nagle.disable": boolean,
    "log_level": integer(0, 7),
    "log.connection.close": boolean,
    "enable.sparse.connections": boolean,
    "api.version.request": only(boolean, True),
    "api.version.request.timeout.ms": integer(1, 300_000),
    "client.dns.lookup": only(text, "use_all_dns_ips"),
}
"""Settings without an effect on this client, as long as the value can be parsed."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of connections, with librdkafka's defaults.

    Attributes:
        servers: Addresses to begin with.
        response_bytes: Most bytes of a response.
        protocol: ``plaintext``, ``ssl``, ``sasl_plaintext`` or ``sasl_ssl``.
        tokens: Returns what OAUTHBEARER sends. Each connection asks it once.
    """

    servers: tuple[Address, ...]
    client_id: str = "tidemill-source"
    response_bytes: int = 100_000_000
    request_timeout_ms: int = 60_000
    setup_timeout_ms: int = 30_000
    receive_buffer: int = 0
    send_buffer: int = 0
    keepalive: bool = False
    family: str = "any"
    protocol: str = "plaintext"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenSource | None = field(default=None, repr=False)
    ca_location: str = ""
    ca_pem: str = ""
    crl_location: str = ""
    ciphers: str = ""
    certificate_location: str = ""
    certificate_pem: str = ""
    key_location: str = ""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    verify: bool = True
    identification: str = "https"

    @property
    def with_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.protocol.endswith("ssl")

    @property
    def with_sasl(self) -> bool:
        """Whether connections authenticate with SASL."""
        return self.protocol.startswith("sasl")

    @property
    def is_consistent(self) -> bool:
        """Whether settings fit together. If not, librdkafka says what is wrong."""
        certificate, key = (
            (self.certificate_location, self.certificate_pem),
            (self.key_location, self.key_pem),
        )
        if any(certificate) != any(key) or all(certificate) or all(key):
            return False
        if self.mechanism == OAUTHBEARER:
            return not self.with_sasl or self.tokens is not None
        return not self.with_sasl or bool(self.mechanism and self.username)


def connection_settings(kafka: Mapping[str, Any], client_id: str) -> ConnectionSettings:
    """Return the settings of connections for a client that has no others.

    Settings of something else have no effect. So have those of TLS and SASL without TLS and SASL.

    Args:
        kafka: Settings of librdkafka, which has checked their names and values.
        client_id: The client id if they have none.

    Raises:
        UnsupportedSettingError: The connections need a setting or a value that only librdkafka
            knows, for example Kerberos.
    """
    protocol = str(kafka.get("security.protocol", "plaintext")).lower()
    with_tls, with_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    if with_sasl and not kafka.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        raise _unsupported("sasl.mechanism", "GSSAPI, its default,")
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms")).upper()
    if with_sasl and mechanism == OAUTHBEARER and _TOKENS not in kafka:
        raise _unsupported("sasl.mechanism", "OAUTHBEARER without a function for tokens")
    fields: dict[str, Any] = {"client_id": client_id, "servers": ()}
    for name, value in kafka.items():
        is_of_tls = name.startswith(("ssl.", "enable.ssl."))
        is_of_sasl = name.startswith(("sasl.", _TOKENS))
        if (is_of_tls and not with_tls) or (is_of_sasl and not with_sasl):
            continue
        if name in CONNECTION:
            attribute, parse_value = CONNECTION[name]
            try:
                fields[attribute] = _parsed(name, parse_value, value)
            except (KeyError, ValueError, TypeError):
                raise _unsupported(name, str(value)) from None
        elif is_of_tls:
            raise _unsupported(name)
    settings = ConnectionSettings(**fields)
    if not settings.is_consistent:
        raise UnsupportedSettingError(
            "security settings do not fit together: SASL needs sasl.username and sasl.password, "
            "and a certificate of a client needs its key",
        )
    return settings


def _unsupported(name: str, value: str = "") -> UnsupportedSettingError:
    known = ", ".join(sorted(each for each in CONNECTION if each.startswith("ssl.")))
    hint = f"Supported settings of TLS are {known}."
    if name.startswith("sasl."):
        hint = f"Supported mechanisms of SASL are {', '.join(MECHANISMS)}."
    what = f"{name}: {value}" if value and not name.startswith("sasl.p") else name
    return UnsupportedSettingError(f"{what} is not supported here", hint=hint)


def parse(
    kafka: Mapping[str, str], own: Table, without_effect: Mapping[str, Parse]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the fields of ``ConnectionSettings`` and those of a client's own settings.

    Args:
        own: What the client understands besides the settings of connections.
        without_effect: Settings that have no effect on the client.

    Returns:
        None if one of the settings is not understood.
    """
    connection: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    try:
        for name, value in kafka.items():
            if (check := without_effect.get(name)) is not None:
                check(str(value))
                continue
            to = connection if name in CONNECTION else fields
            attribute, parse_value = CONNECTION.get(name) or own[name]
            if attribute in to:  # two names of one setting: librdkafka decides
                return None
            to[attribute] = _parsed(name, parse_value, value)
    except (KeyError, ValueError, TypeError):
        return None
    return (connection, fields) if "servers" in connection else None
