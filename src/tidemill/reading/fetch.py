"""Reads the records of one range of offsets from a Kafka broker into Arrow record batches.

There are two editions with the same contract (``tests/contracts/fetch.py``): our own client, which
makes no object of a record, and librdkafka for settings and message formats that ours does not
understand (Kerberos, tokens of an issuer; formats v0 and v1). Must not know: Spark, options' names,
queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from tidemill.reading import own
from tidemill.reading.own import OldFormatError
from tidemill.reading.plan import (
    BATCH_BYTES,
    BATCH_ROWS,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    FetchPlan,
)
from tidemill.reading.ranges import OffsetRange

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "SCHEMA",
    "SCHEMA_WITH_HEADERS",
    "FetchPlan",
    "close_idle_clients",
    "fetch",
]

SWITCH = "TIDEMILL_SOURCE_CLIENT"
"""The environment variable that chooses librdkafka with ``librdkafka``."""


def fetch(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch]:
    """Yield exactly the readable records with offsets in ``[start, end)``, in order.

    A range ends at a position and not after a number of records, because compacted topics and
    transaction markers leave fewer records than offsets.

    Args:
        plan: How to read it.

    Yields:
        Record batches of ``SCHEMA`` (or ``SCHEMA_WITH_HEADERS``), none of them empty.

    Raises:
        DataLossError: Records or the topic were removed, and ``fail_on_data_loss`` is set.
        UnreachableError: The partition can't be read.
        RequestTimedOutError: The broker did not respond in time.
        OptionError: librdkafka does not know a setting.
    """
    batches = None
    if os.environ.get(SWITCH) != "librdkafka":
        batches = own.start(wanted, plan)
    if batches is not None:
        try:
            yield from batches
        except OldFormatError as error:
            wanted = OffsetRange(wanted.topic, wanted.partition, error.position, wanted.end)
        else:
            return
    from tidemill.reading import librdkafka

    yield from librdkafka.fetch(wanted, plan)


def close_idle_clients() -> None:
    """Close the connections that this process keeps for its next range."""
    import sys

    own.close_idle_clients()
    if (used := sys.modules.get("tidemill.reading.librdkafka")) is not None:
        used.close_idle_consumers()
