"""Transactions as one partition sees them: markers on the wire, and which ones are unstable.

Knows producers and offsets; no coordinator, no transactional ids, and no files: the index of the
aborted ones is in ``aborted``.

Source: KIP-98. A marker is a control batch of one record: its key is ``version i16 = 0, type i16``
(0 abort, 1 commit), its value ``version i16 = 0, coordinatorEpoch i32``.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from typing import NamedTuple

from tidemill.errors import InvalidRecordError
from tidemill.log.batch import Buffer, parse_header
from tidemill.log.records import NewRecord, decode_records, encode_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class OpenTransaction(NamedTuple):
    """A transaction that has written to the partition and has no marker yet."""

    producer_id: int
    epoch: int
    first_offset: int


class Marker(NamedTuple):
    """The end of a producer's transaction.

    Its epoch may be above that of the data: it fences older instances of the producer (KIP-360,
    KIP-890).
    """

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int = 0


def encode_marker(marker: Marker, *, timestamp_ms: int, log_append_time: bool = False) -> bytearray:
    """The control batch of a marker, without offset."""
    key = _KEY.pack(0, _COMMIT if marker.commit else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [NewRecord(key, value)],
        timestamp_ms=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transactional=True,
        control=True,
        log_append_time=log_append_time,
    )


def decode_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """The marker of a control batch; None where compaction emptied it, or it is another control.

    Raises:
        InvalidRecordError: it is not well-formed.
    """
    header = parse_header(batch, position)
    if not header.record_count:
        return None
    record = decode_records(batch, position)[0]
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (_ABORT, _COMMIT):
            return None  # other controls end no transaction
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error:
        raise InvalidRecordError(
            f"the control batch at offset {header.base_offset} is not a transaction marker"
        ) from None
    return Marker(header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch)


class UnstableTransactions:
    """Those that hold back the last stable offset: open ones, and ended ones whose marker is not
    synced yet. All questions are answered in constant time.

    Attributes:
        open: first offset by producer id, oldest first.
    """

    __slots__ = ("_ended", "_first_offsets", "open")

    def __init__(self) -> None:
        self.open: OrderedDict[int, int] = OrderedDict()
        # All unstable ones by their first offset, oldest first, since they begin in that order.
        self._first_offsets: OrderedDict[int, None] = OrderedDict()
        self._ended: deque[tuple[int, int]] = deque()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer's first batch was appended; offsets only grow."""
        self.open[producer_id] = first_offset
        self._first_offsets[first_offset] = None

    def end(self, producer_id: int, marker_offset: int) -> None:
        """Its marker was appended; it holds back until that is synced."""
        self._ended.append((marker_offset, self.open.pop(producer_id)))

    def settle(self, high_watermark: int) -> None:
        """Markers below the high watermark are synced: their transactions hold nothing back."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            del self._first_offsets[ended.popleft()[1]]

    def first_offset(self) -> int:
        """First offset of the oldest unstable one, or -1."""
        return next(iter(self._first_offsets), -1)


__all__ = ["Marker", "OpenTransaction", "UnstableTransactions", "decode_marker", "encode_marker"]
