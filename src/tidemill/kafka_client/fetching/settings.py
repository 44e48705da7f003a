"""Translates librdkafka's settings for a client that reads, if it understands them all.

Must not know: sockets, Spark, queries. Source: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.kafka_client.settings import (
    WITHOUT_EFFECT,
    ConnectionSettings,
    Parse,
    Table,
    boolean,
    integer,
    one_of,
    only,
    parse,
    text,
)

_MESSAGE_MAX_BYTES = 1_000_000
"""The default of message.max.bytes, below which librdkafka accepts no fetch.max.bytes."""

_UNDERSTOOD: Table = {
    "isolation.level": ("read_committed", one_of("read_committed", "read_uncommitted")),
    "check.crcs": ("check_crcs", boolean),
    "fetch.wait.max.ms": ("wait_ms", integer(0, 300_000)),
    "fetch.min.bytes": ("min_bytes", integer(1, 100_000_000)),
    "fetch.max.bytes": ("max_bytes", integer(0, 2_147_483_135)),
    "fetch.message.max.bytes": ("partition_bytes", integer(1, 1_000_000_000)),
    "max.partition.fetch.bytes": ("partition_bytes", integer(1, 1_000_000_000)),
    "fetch.error.backoff.ms": ("backoff_ms", integer(0, 300_000)),
    "topic.metadata.propagation.max.ms": ("propagation_ms", integer(0, 3_600_000)),
}
"""Settings that the client obeys, besides those of connections."""

_IRRELEVANT: Mapping[str, Parse] = {
    **WITHOUT_EFFECT,
    "group.id": text,
    "queued.min.messages": integer(1, 10_000_000),
    "queued.max.messages.kbytes": integer(1, 2_097_151),
    "fetch.queue.backoff.ms": integer(0, 300_000),
    "auto.commit.interval.ms": integer(0, 86_400_000),
    "allow.auto.create.topics": only(boolean, False),
    "message.max.bytes": integer(1000, _MESSAGE_MAX_BYTES),
}
"""Settings without an effect on reading a range, as long as the value can be parsed."""

_OVERHEAD = 512


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client that reads. With librdkafka's defaults, except ``partition_bytes``.

    Attributes:
        connection: Settings of connections.
        partition_bytes: Most bytes of records in a response, unless one batch is larger.
    """

    connection: ConnectionSettings
    read_committed: bool = False
    check_crcs: bool = True
    wait_ms: int = 10
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    partition_bytes: int = 4 * 1024 * 1024
    backoff_ms: int = 50
    propagation_ms: int = 30_000


def understand(kafka: Mapping[str, str]) -> ClientSettings | None:
    """Return the settings for our own client; None if it does not understand them all."""
    found = parse(kafka, _UNDERSTOOD, _IRRELEVANT)
    if found is None:
        return None
    connection, fields = found
    fields["read_committed"] = fields.get("read_committed") == "read_committed"
    settings = ClientSettings(ConnectionSettings(**connection), **fields)
    return settings if _is_consistent(settings) else None


def _is_consistent(settings: ClientSettings) -> bool:
    """Whether settings fit together. If not, librdkafka says what is wrong."""
    most = settings.connection.response_bytes - _OVERHEAD
    return _MESSAGE_MAX_BYTES <= settings.max_bytes <= most and settings.connection.is_consistent
