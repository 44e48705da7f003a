"""Makes Arrow record batches of the decoder's buffers. Must not know: brokers, ranges, Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_LEAST_CONSTANTS = 1024


class BatchMaker:
    """Makes the record batches of one partition.

    Args:
        schema: ``SCHEMA`` or ``SCHEMA_WITH_HEADERS``.
    """

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._constants: tuple[pa.Array, pa.Array] = (pa.array([]), pa.array([]))

    def make(self, rows: int, buffers: Sequence[Any]) -> pa.RecordBatch:
        """Return the rows as a record batch, without copying them.

        Args:
            rows: The number of rows.
            buffers: What the decoder returned.
        """
        given = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        topics, partitions = self._repeated(rows)
        columns = [
            pa.Array.from_buffers(pa.binary(), rows, given[0:3]),
            pa.Array.from_buffers(pa.binary(), rows, given[3:6]),
            topics,
            partitions,
            pa.Array.from_buffers(pa.int64(), rows, [None, given[6]]),
            pa.Array.from_buffers(self._schema.field("timestamp").type, rows, [None, given[7]]),
            pa.Array.from_buffers(pa.int32(), rows, [None, given[8]]),
        ]
        if len(self._schema) > len(columns):
            columns.append(self._headers(rows, given[9:]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _repeated(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return topic and partition for each row. They are made once, and sliced."""
        topics, partitions = self._constants
        if len(topics) < rows:
            count = max(rows, _LEAST_CONSTANTS)
            topics = pa.repeat(pa.scalar(self._topic, pa.string()), count)
            partitions = pa.repeat(pa.scalar(self._partition, pa.int32()), count)
            self._constants = topics, partitions
        return topics.slice(0, rows), partitions.slice(0, rows)

    def _headers(self, rows: int, given: Sequence[pa.Buffer | None]) -> pa.Array:
        kind = self._schema.field("headers").type
        count = (0 if given[3] is None else given[3].size // 4) - 1
        keys = pa.Array.from_buffers(pa.string(), count, given[2:5])
        values = pa.Array.from_buffers(pa.binary(), count, given[5:8])
        pairs = pa.Array.from_buffers(kind.value_type, count, [None], children=[keys, values])
        return pa.Array.from_buffers(kind, rows, given[0:2], children=[pairs])
