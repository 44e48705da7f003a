"""Stored batches for the tests of our own client, and what the decoder makes of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.kafka_client.fetching.decompression import Decompressor
from tidemill.log.format.batch import build_batch
from tidemill.log.format.records import NewRecord, encode_batch, encode_record
from tidemill.native import extension
from tidemill.reading.own import BatchMaker
from tidemill.reading.plan import SCHEMA, SCHEMA_WITH_HEADERS

FULL, SET_READ, RANGE_READ, OLD_FORMAT = range(4)
LAST = 2**62


def batch(*values: bytes | None, base: int = 0, **fields: Any) -> bytearray:
    """Return a batch with these values, and with the first byte of each as its key."""
    records = [NewRecord(value and value[:1], value) for value in values]
    return encode_batch(records, timestamp_ms=1000, base_offset=base, **fields)


def sparse(
    deltas: list[int], *, base: int, last_delta: int, body: bytes | None = None
) -> bytearray:
    """Return a batch as compaction leaves it: only some of its offsets have a record."""
    out = bytearray()
    for delta in deltas:
        encode_record(out, delta, 0, None, b"%d" % (base + delta))
    return build_batch(
        base_offset=base,
        body=bytes(out),
        attributes=0,
        last_offset_delta=last_delta,
        base_timestamp=1000,
        max_timestamp=1000,
        record_count=len(deltas),
    )


def decode(
    records: bytes | bytearray,
    first: int = 0,
    end: int = LAST,
    *,
    aborted: list[tuple[int, int]] | None = None,
    headers: bool = False,
    check_crcs: bool = True,
    max_rows: int = 1000,
    max_bytes: int = 1 << 20,
    limit: int = 1 << 20,
) -> tuple[list[pa.RecordBatch], int, int]:
    """Return the record batches, where the decoder stopped, and why."""
    decoder = extension.Decoder(headers, check_crcs, Decompressor(limit))
    maker = BatchMaker("t", 0, SCHEMA_WITH_HEADERS if headers else SCHEMA)
    decoder.feed(records, aborted)
    found, ended = [], FULL
    while ended == FULL:
        first, ended, rows, buffers = decoder.read(first, end, max_rows, max_bytes)
        if rows:
            made = maker.make(rows, buffers)
            made.validate(full=True)
            found.append(made)
    decoder.release()
    return found, first, ended


def rows(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return all rows."""
    return [row for each in found for row in each.to_pylist()]


def offsets(found: list[pa.RecordBatch]) -> list[int]:
    """Return the offsets of all rows."""
    return [offset for each in found for offset in each.column("offset").to_pylist()]
