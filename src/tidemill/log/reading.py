"""What may be read of a partition: a chain of segments, its offsets, and finding places in it.

Reads never change the chain, and know nothing of how it grows or gets onto the disk: that is
``partition``. What is found may be loaded in other threads.

Offsets, in order: ``log_start_offset`` <= ``high_watermark`` (all below is synced; readers see
nothing above) <= ``log_end_offset``.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tidemill.errors import OffsetOutOfRangeError, StorageError
from tidemill.log.batch import HEADER_SIZE
from tidemill.log.names import TopicPartition
from tidemill.log.segment import Segment, total_size
from tidemill.log.slice import Slice
from tidemill.log.timestamps import find_max_timestamp, find_timestamp

_BASE_OFFSET = attrgetter("base_offset")


class ReadableLog:
    """The side of a partition's log that readers see.

    Attributes:
        tp: which partition.
        segments: oldest first; the last one is active.
        log_start_offset: first offset that may be read.
        log_end_offset: offset of the next record.
        high_watermark: readers see offsets below it: they are synced.
        failure: why the partition is offline, or None.
    """

    __slots__ = (
        "_hw_position",
        "_hw_segment",
        "failure",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "segments",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self.tp = tp
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_end_offset
        self.failure: StorageError | None = None
        self._hw_segment = segments[-1]
        self._hw_position = segments[-1].size

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return total_size(self.segments)

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one: bool = True
    ) -> Slice | None:
        """Find stored bytes from the batch that holds ``offset`` on, in one segment.

        Batches that compaction has emptied are passed over while others follow: librdkafka takes an
        answer without a record for one that was cut too short, and after ten of them for a record
        that is too large.

        Args:
            offset: first offset that is wanted.
            max_bytes: most bytes; the last batch may be cut by it.
            limit_offset: nothing at or above it is given: the high watermark for consumers.
            min_one: give at least the first batch, whole, however large it is.

        Returns:
            None where there is nothing below ``limit_offset`` yet; a slice of size 0 where the
            first batch is larger than ``max_bytes`` and ``min_one`` is False.

        Raises:
            OffsetOutOfRangeError: below the log's start or above its end.
            CorruptLogError, StorageError: what is stored can't be used.
        """
        if self.failure is not None:
            raise self.failure
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.tp} holds offsets {self.log_start_offset} to {self.log_end_offset - 1}, "
                f"not {offset}"
            )
        if offset >= limit_offset:
            return None
        segments = self.segments
        index = len(segments) - 1
        if offset < segments[index].base_offset:
            index = max(self.segment_index(offset), 0)
        emptied: Slice | None = None
        while index < len(segments):
            segment = segments[index]
            place = segment.locate(offset)
            if place is not None:
                position, size = place
                end = self._readable_end(index, limit_offset)
                if position >= end:
                    break
                if size > HEADER_SIZE:
                    return _cut(segment, place, end, max_bytes, min_one)
                full = segment.find_record(position, end)
                if full is not None:
                    return _cut(segment, full, end, max_bytes, min_one)
                emptied = _cut(segment, place, end, max_bytes, min_one)
            index += 1  # compaction left no record from here to the segment's end
        return emptied

    def segment_index(self, offset: int) -> int:
        """Index of the segment that holds ``offset``; -1 below the first."""
        return bisect_right(self.segments, offset, key=_BASE_OFFSET) - 1

    def holds(self, segment: Segment) -> bool:
        """Whether the segment is still part of the log: neither deleted nor compacted away."""
        index = self.segment_index(segment.base_offset)
        return index >= 0 and self.segments[index] is segment

    def _readable_end(self, index: int, limit_offset: int) -> int:
        segment = self.segments[index]
        if limit_offset >= self.log_end_offset:
            return segment.size
        if index + 1 < len(self.segments) and self.segments[index + 1].base_offset <= limit_offset:
            return segment.size
        if limit_offset == self.high_watermark and segment is self._hw_segment:
            return self._hw_position
        return segment.position_before(limit_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first readable record that is not older, or None.

        Exact to the record: the batch is decoded. Blocks while it reads.

        Raises:
            CorruptLogError, StorageError: what is stored can't be used.
        """
        if self.failure is not None:
            raise self.failure
        return find_timestamp(
            self.segments, timestamp_ms, self.log_start_offset, self.high_watermark
        )

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp of the (first) record with the latest timestamp (KIP-734)."""
        if self.failure is not None:
            raise self.failure
        return find_max_timestamp(self.segments, self.log_start_offset, self.high_watermark)


def _cut(
    segment: Segment, first: tuple[int, int], end: int, max_bytes: int, min_one: bool
) -> Slice:
    """From the first batch (position and size) to the end, as far as the reader takes it."""
    position, first_size = first
    size = end - position
    if size > max_bytes:
        size = max_bytes
        if size < first_size:
            size = first_size if min_one else 0
    return Slice(segment, position, size)
