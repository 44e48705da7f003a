"""The columns of records, and the settings for reading them.

Both editions of ``fetch`` share them. Must not know: Spark, Kafka clients, queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""Columns of the records: those of Spark's Kafka source."""
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", _HEADERS))

BATCH_ROWS = 16_384
"""Most rows in a record batch. With this many, the cost per batch is negligible."""
BATCH_BYTES = 16 * 1024 * 1024
"""Approximate limit of the bytes in a record batch. Arrow's columns must stay below 2 GiB."""

DEFAULT_SETTINGS: Mapping[str, str] = {
    # The default of the Java client and of Spark, but not of librdkafka.
    "isolation.level": "read_uncommitted",
    "check.crcs": "true",
    # All records of a range exist already: a long poll at its end would only delay the next one.
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "50",
    "fetch.queue.backoff.ms": "5",
}
"""Settings of librdkafka that the user can override."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The settings for reading, the same for all ranges of a query.

    Attributes:
        kafka: The user's settings of librdkafka.
        include_headers: Whether to add the column ``headers``.
        fail_on_data_loss: Whether to raise an error if records of the range were removed. If not,
            they are skipped.
        timeout_ms: Longest wait for the next record.
        group_id_prefix: Prefix of the consumer group id at the brokers.
        batch_rows: Most rows in a record batch.
    """

    kafka: Mapping[str, str]
    include_headers: bool = False
    fail_on_data_loss: bool = True
    timeout_ms: int = 120_000
    group_id_prefix: str = "tidemill-source"
    batch_rows: int = field(default=BATCH_ROWS)

    @classmethod
    def committed(
        cls,
        servers: str,
        properties: Mapping[str, str],
        name: str,
        *,
        include_headers: bool = False,
        batch_rows: int = BATCH_ROWS,
    ) -> FetchPlan:
        """Return the settings for reading what is committed, with a wait of half a minute.

        Args:
            servers: ``bootstrap.servers``.
            properties: The user's settings of librdkafka, which override the others.
            name: Prefix of the consumer group id at the brokers.
        """
        kafka = {"isolation.level": "read_committed", **properties, "bootstrap.servers": servers}
        return cls(
            kafka,
            include_headers=include_headers,
            timeout_ms=30_000,
            group_id_prefix=name,
            batch_rows=batch_rows,
        )
