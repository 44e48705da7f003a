"""Makes dead letters of the records that can't be parsed.

A dead letter has the key, the value and the headers of its record, and more headers with the reason
and with the position of the record. Must not know: how values are parsed, Kafka clients, Spark.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.spark.source.planning.parsing import REASON as REASON_COLUMN

REASON = "error.reason"
HEADERS = (
    REASON,
    "source.topic",
    "source.partition",
    "source.offset",
    "source.timestamp",
    "pipeline",
    "stream",
)
"""Headers that are added to a dead letter. All are text; the timestamp is in milliseconds since
1970."""

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)])


def letters_of(refused: pa.RecordBatch, stream: str, pipeline: str) -> pa.RecordBatch:
    """Return dead letters, with ``key``, ``value`` and ``headers``.

    Args:
        refused: Refused records, with the columns of ``fetch``, ``headers`` among them, and with
            the reason.
    """
    names = (REASON_COLUMN, "topic", "partition", "offset")
    columns: list[Any] = [refused.column(name).to_pylist() for name in names]
    times = refused.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False)
    columns.append(times.cast(pa.int64()).to_pylist())
    last = [pipeline.encode(), stream.encode()]
    headers = []
    for own, *values in zip(refused.column("headers").to_pylist(), *columns, strict=True):
        added = [*(None if each is None else str(each).encode() for each in values), *last]
        named = zip(HEADERS, added, strict=True)
        headers.append([*(own or ()), *({"key": name, "value": value} for name, value in named)])
    arrays = [refused.column("key"), refused.column("value"), pa.array(headers, _HEADERS)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
