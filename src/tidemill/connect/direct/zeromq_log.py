"""Blocks of a topic's log, for subscribers that ask for what is not in memory any more.

The log is read as Arrow columns, which are the columns of a block: no object is made of a record.
Must not know: sockets, who asks.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from tidemill.connect.direct.contract import Counts, Place
from tidemill.direct.pubsub.blocks import (
    Columns,
    Headers,
    decode_head,
    encode_block,
    encode_columns,
)
from tidemill.errors import DataLossError, TidemillError
from tidemill.reading.fetch import fetch
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange

_BLOCK_BYTES = 512 << 10
_BLOCK_RECORDS = 5000
_READ_MS = 2000
_MOST_READS = 8
"""Reads of the log that stay open, since their requesters probably read on."""
_KEPT_BYTES = 16 << 20
"""Blocks that are kept, since subscribers that begin together ask for the same ones."""


class Wanted(NamedTuple):
    """The place of a block, and whether only the last record of each key is wanted."""

    partition: int
    offset: int
    last_only: bool


class StoredBlocks:
    """Makes blocks of the log. One thread uses it.

    Args:
        place: the topic.
        session: that of the topic.
        counts: where records that are read are counted.
    """

    def __init__(self, place: Place, session: int, counts: Counts) -> None:
        self._place, self._session, self._counts = place, session, counts
        properties = {
            "client.id": place.client,
            "fetch.message.max.bytes": str(_BLOCK_BYTES),
            **place.kafka.properties,
        }
        plan = FetchPlan.committed(
            place.kafka.servers,
            properties,
            place.client,
            include_headers=True,
            batch_rows=_BLOCK_RECORDS,
        )
        self._plan = dataclasses.replace(plan, timeout_ms=_READ_MS)
        self._reads: OrderedDict[Wanted, Iterator[bytes]] = OrderedDict()
        self._kept: OrderedDict[Wanted, bytes] = OrderedDict()
        self._kept_bytes = 0

    def kept(self, wanted: Wanted) -> bytes | None:
        """Return a block that was read before, if it is still in memory."""
        return self._kept.get(wanted)

    def read(self, wanted: Wanted, end: int) -> bytes | None:
        """Return the block that begins at an offset; None if the log can't be read.

        It begins later if the log does.

        Args:
            end: the offset behind the last record that can be in it.
        """
        blocks = self._reads.pop(wanted, iter(()))
        try:
            block = next(blocks, None)
            if block is None:
                blocks = self._blocks(wanted, end)
                block = next(blocks)
        except DataLossError:
            return self._first(wanted, end)
        except (KafkaException, TidemillError):
            return None
        self._reads[wanted._replace(offset=self._keep(wanted, block))] = blocks
        if len(self._reads) > _MOST_READS:
            self._reads.popitem(last=False)
        return block

    def _first(self, wanted: Wanted, end: int) -> bytes | None:
        """Return the first block that the log has."""
        place = self._place.topic, wanted.partition
        try:
            start = self._place.kafka.start_offsets(self._place.client, [place])[place]
            return next(self._blocks(wanted._replace(offset=min(start, end)), end))
        except (KafkaException, TidemillError):
            return None

    def _keep(self, wanted: Wanted, block: bytes) -> int:
        """Keep a block, and return the offset behind it."""
        self._kept[wanted] = block
        self._kept_bytes += len(block)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return decode_head(block).following

    def _blocks(self, wanted: Wanted, end: int) -> Iterator[bytes]:
        """Yield the blocks of a range of offsets, without a gap between them."""
        partition, first, last_only = wanted
        found = fetch(OffsetRange(self._place.topic, partition, first, end), self._plan)
        for batch in (part for each in found for part in _parts(each)):
            following = batch.column("offset")[-1].as_py() + 1
            self._counts.recovered += batch.num_rows
            kept = _last_of_each_key(batch) if last_only else batch
            yield encode_columns(self._session, partition, first, following, _columns(kept))
            first = following
        if first < end or first == wanted.offset:  # markers, and aborted records
            yield encode_block(self._session, partition, first, end, ())

    def close(self) -> None:
        """End the reads."""
        self._reads.clear()


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield parts of so many bytes of keys and values, unless one record is larger."""
    lengths = (pc.fill_null(pc.binary_length(batch.column(each)), 0) for each in ("key", "value"))
    ends = _numbers(pc.cumulative_sum(pc.add(*lengths))).cast("i")
    start = 0
    while start < batch.num_rows:
        limit = (ends[start - 1] if start else 0) + _BLOCK_BYTES
        end = max(bisect_right(ends, limit), start + 1)
        yield batch.slice(start, end - start)
        start = end


def _columns(batch: pa.RecordBatch) -> Columns:
    """Return the columns of a block with the records of a batch."""
    keys, values = batch.column("key"), batch.column("value")
    lengths = [pc.fill_null(pc.binary_length(each), -1) for each in (keys, values)]
    times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
    numbers = [
        _big_endian("q", batch.column("offset")),
        _big_endian("q", times),
        *(_big_endian("i", each) for each in lengths),
    ]
    payloads = _payload(keys), _payload(values)
    return Columns(batch.num_rows, numbers, payloads, _headers(batch.column("headers")))


def _big_endian(code: str, column: pa.Array) -> bytes:
    found = array(code, _numbers(column).tobytes())
    if sys.byteorder == "little":
        found.byteswap()
    return found.tobytes()


def _numbers(column: pa.Array) -> memoryview:
    """Return the bytes of a column of numbers."""
    width = column.type.bit_width // 8
    start = column.offset * width
    return memoryview(column.buffers()[1])[start : start + len(column) * width]


def _payload(column: pa.Array) -> memoryview:
    """Return the bytes of all values of a column together."""
    _, ends, data = column.buffers()
    bounds = memoryview(ends).cast("i")
    first, last = bounds[column.offset], bounds[column.offset + len(column)]
    return memoryview(data or b"")[first:last]


def _headers(column: pa.Array) -> Sequence[Headers]:
    """Return the headers of each record, or nothing if no record has one."""
    if not len(column.flatten()):
        return ()
    found: list[list[dict[str, Any]] | None] = column.to_pylist()
    return [[(each["key"], each["value"]) for each in row or ()] for row in found]


def _last_of_each_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the last record of each key, in order, and all records without a key."""
    keys = batch.column("key").to_pylist()
    last = {number if key is None else key: number for number, key in enumerate(keys)}
    return batch.take(pa.array(sorted(last.values()), pa.int64()))
