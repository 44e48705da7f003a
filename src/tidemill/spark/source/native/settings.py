"""Translates librdkafka's settings for the native edition of ``fetch``, if it understands them all.

A setting with a value that this module does not understand is left to librdkafka, which accepts it
or explains what is wrong. Must not know: sockets, Spark, queries. Source: librdkafka's
CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.who_answers import addresses

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms of SASL that the native edition speaks."""

Parse = Callable[[str], Any]

_MESSAGE_MAX_BYTES = 1_000_000
"""The default of message.max.bytes, below which librdkafka accepts no fetch.max.bytes."""


def _integer(least: int, most: int) -> Parse:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,12}", text):
            raise ValueError(text)
        number = int(text)
        if not least <= number <= most:
            raise ValueError(text)
        return number

    return parse


def _boolean(text: str) -> bool:
    return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[
        text.lower()
    ]


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return parse


def _only(parse: Parse, wanted: object) -> Parse:
    def check(text: str) -> object:
        if (value := parse(text)) != wanted:
            raise ValueError(text)
        return value

    return check


def _text(text: str) -> str:
    return text


def _mechanism(text: str) -> str:
    if text.upper() not in MECHANISMS:
        raise ValueError(text)
    return text.upper()


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    found = tuple(addresses(text))
    if not found or len(found) != len(text.split(",")):
        raise ValueError(text)
    return found


_UNDERSTOOD: Mapping[str, tuple[str, Parse]] = {
    "bootstrap.servers": ("servers", _servers),
    "client.id": ("client_id", _text),
    "isolation.level": ("read_committed", _one_of("read_committed", "read_uncommitted")),
    "check.crcs": ("check_crcs", _boolean),
    "fetch.wait.max.ms": ("wait_ms", _integer(0, 300_000)),
    "fetch.min.bytes": ("min_bytes", _integer(1, 100_000_000)),
    "fetch.max.bytes": ("max_bytes", _integer(0, 2_147_483_135)),
    "fetch.message.max.bytes": ("partition_bytes", _integer(1, 1_000_000_000)),
    "max.partition.fetch.bytes": ("partition_bytes", _integer(1, 1_000_000_000)),
    "fetch.error.backoff.ms": ("backoff_ms", _integer(0, 300_000)),
    "receive.message.max.bytes": ("response_bytes", _integer(1000, 2_147_483_647)),
    "socket.timeout.ms": ("request_timeout_ms", _integer(10, 300_000)),
    "socket.connection.setup.timeout.ms": ("setup_timeout_ms", _integer(1000, 2_147_483_647)),
    "socket.receive.buffer.bytes": ("receive_buffer", _integer(0, 100_000_000)),
    "socket.send.buffer.bytes": ("send_buffer", _integer(0, 100_000_000)),
    "socket.keepalive.enable": ("keepalive", _boolean),
    "broker.address.family": ("family", _one_of("any", "v4", "v6")),
    "topic.metadata.propagation.max.ms": ("propagation_ms", _integer(0, 3_600_000)),
    "security.protocol": ("protocol", _one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    "sasl.mechanism": ("mechanism", _mechanism),
    "sasl.mechanisms": ("mechanism", _mechanism),
    "sasl.username": ("username", _text),
    "sasl.password": ("password", _text),
    "ssl.ca.location": ("ca_location", _text),
    "ssl.ca.pem": ("ca_pem", _text),
    "ssl.certificate.location": ("certificate_location", _text),
    "ssl.key.location": ("key_location", _text),
    "ssl.key.password": ("key_password", _text),
    "enable.ssl.certificate.verification": ("verify", _boolean),
    "ssl.endpoint.identification.algorithm": ("identification", _one_of("none", "https")),
}
"""Settings that the native edition obeys: the field, and how to parse the value."""

_IRRELEVANT: Mapping[str, Parse] = {
    "group.id": _text,
    "queued.min.messages": _integer(1, 10_000_000),
    "queued.max.messages.kbytes": _integer(1, 2_097_151),
    "fetch.queue.backoff.ms": _integer(0, 300_000),
    "auto.commit.interval.ms": _integer(0, 86_400_000),
    "metadata.max.age.ms": _integer(1, 86_400_000),
    "topic.metadata.refresh.interval.ms": _integer(-1, 3_600_000),
    "topic.metadata.refresh.fast.interval.ms": _integer(1, 60_000),
    "topic.metadata.refresh.sparse": _boolean,
    "statistics.interval.ms": _integer(0, 86_400_000),
    "connections.max.idle.ms": _integer(0, 2_147_483_647),
    "socket.nagle.disable": _boolean,
    "log_level": _integer(0, 7),
    "log.connection.close": _boolean,
    "enable.sparse.connections": _boolean,
    "api.version.request": _only(_boolean, True),
    "api.version.request.timeout.ms": _integer(1, 300_000),
    "allow.auto.create.topics": _only(_boolean, False),
    "client.dns.lookup": _only(_text, "use_all_dns_ips"),
    "message.max.bytes": _integer(1000, _MESSAGE_MAX_BYTES),
}
"""Settings without an effect on reading a range, as long as the value can be parsed."""

_OVERHEAD = 512


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of the native edition. With librdkafka's defaults, except ``partition_bytes``.

    Attributes:
        servers: Addresses to begin with.
        partition_bytes: Most bytes of records in a response, unless one batch is larger.
        response_bytes: Most bytes of a response.
        protocol: ``plaintext``, ``ssl``, ``sasl_plaintext`` or ``sasl_ssl``.
    """

    servers: tuple[tuple[str, int], ...]
    client_id: str = "tidemill-source"
    read_committed: bool = False
    check_crcs: bool = True
    wait_ms: int = 10
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    partition_bytes: int = 4 * 1024 * 1024
    backoff_ms: int = 50
    response_bytes: int = 100_000_000
    request_timeout_ms: int = 60_000
    setup_timeout_ms: int = 30_000
    receive_buffer: int = 0
    send_buffer: int = 0
    keepalive: bool = False
    family: str = "any"
    propagation_ms: int = 30_000
    protocol: str = "plaintext"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_location: str = ""
    ca_pem: str = ""
    certificate_location: str = ""
    key_location: str = ""
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


def understand(kafka: Mapping[str, str]) -> ClientSettings | None:
    """Return the settings for the native edition; None if it does not understand them all.

    Args:
        kafka: Settings of librdkafka.
    """
    fields: dict[str, Any] = {}
    try:
        for name, text in kafka.items():
            if (parse := _IRRELEVANT.get(name)) is not None:
                parse(str(text))
                continue
            attribute, parse = _UNDERSTOOD[name]
            if attribute in fields:  # two names of one setting: librdkafka decides
                return None
            fields[attribute] = parse(str(text))
        fields["read_committed"] = fields.get("read_committed") == "read_committed"
        settings = ClientSettings(**fields)
    except (KeyError, ValueError, TypeError):
        return None
    return settings if _is_consistent(settings) else None


def _is_consistent(settings: ClientSettings) -> bool:
    """Whether settings fit together. If not, librdkafka says what is wrong."""
    if not _MESSAGE_MAX_BYTES <= settings.max_bytes <= settings.response_bytes - _OVERHEAD:
        return False
    if bool(settings.certificate_location) != bool(settings.key_location):
        return False
    return not settings.with_sasl or bool(settings.mechanism and settings.username)
