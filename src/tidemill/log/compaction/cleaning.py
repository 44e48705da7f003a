"""The rules of compaction: which records are kept, and how a batch is rewritten.

Pure functions from bytes to bytes. Knows no segments and no files; ``run`` decides when compaction
is due. A batch can have tens of thousands of records, so functions that iterate over records are
generators that yield in between, and an event loop can run them in slices.

Sources: Kafka documentation, "Log Compaction"; KIP-98 (empty batches keep sequences); KIP-534 (the
delete horizon: attribute bit 6 is set, and the batch's base timestamp is the time from which its
tombstones, or a transaction marker, can be removed).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    rebuild_batch,
)
from tidemill.log.format.compression import DEFAULT_LIMIT, Codec, compress
from tidemill.log.format.records import (
    QUICK_INPUT,
    RawRecord,
    encode_with_rest,
    in_steps,
    load_records,
    scan_records,
)
from tidemill.log.steps import Steps, elsewhere

DEFAULT_MAP_KEYS = 250_000
"""Most keys in an offset map, about 40 MB. A log with more dirty keys takes several passes."""

_RECORDS_PER_STEP = 512


class OffsetMap:
    """The latest offset of each key in the dirty part of a log, in bounded memory.

    Keys are kept as 16-byte hashes.

    Attributes:
        latest_offset: the last offset that the map covers. All records above it are kept.
    """

    def __init__(self, max_keys: int = DEFAULT_MAP_KEYS) -> None:
        if max_keys < 1:
            raise ValueError("max_keys must be at least 1")
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    def add_batch(self, batch: Buffer, header: BatchHeader, start_offset: int) -> Steps[bool]:
        """Add the keys of a batch that are at or above ``start_offset``.

        A control batch only advances ``latest_offset``. The caller must not add batches of aborted
        transactions.

        Returns:
            False if the map is full and does not cover the batch. Some of its keys can be in the
            map. That is safe, because such a key's later record exists and is kept. The first batch
            is always covered, so that each pass makes progress.
        """
        if not header.is_control:
            body = yield from load_records(batch, header, DEFAULT_LIMIT)
            offsets = self._offsets
            # A pass begins at an index entry, so batches below the start are not progress.
            may_refuse = self.latest_offset >= start_offset
            for raw in in_steps(scan_records(body, header.record_count), _RECORDS_PER_STEP):
                if raw is None:
                    yield None
                    continue
                offset = header.base_offset + raw.offset_delta
                if raw.key_length < 0 or offset < start_offset:
                    continue
                digest = _digest(body, raw)
                if may_refuse and len(offsets) >= self._max_keys and digest not in offsets:
                    return False
                offsets[digest] = offset
        self.latest_offset = max(self.latest_offset, header.last_offset)
        return True

    def is_latest(self, body: Buffer, raw: RawRecord, offset: int) -> bool:
        """Return whether the map has no later record with this key."""
        return offset >= self._offsets.get(_digest(body, raw), -1)


def _digest(body: Buffer, raw: RawRecord) -> bytes:
    key = body[raw.key_start : raw.key_start + raw.key_length]
    return blake2b(key, digest_size=16).digest()


class LastOfProducer(NamedTuple):
    """The batch that must be kept because it shows a producer's state.

    Attributes:
        offset: last offset of the producer's last data batch with sequences, or -1.
        epoch: the producer's epoch. If both offsets are -1, all batches of this epoch are kept.
        control_offset: last offset of the last control batch of its epoch, or -1. It counts if
            ``offset`` is -1.
    """

    offset: int
    epoch: int
    control_offset: int

    def matches(self, header: BatchHeader) -> bool:
        """Return whether a batch of the producer must be kept."""
        if self.offset >= 0:
            return header.last_offset == self.offset
        if self.control_offset >= 0:
            return header.last_offset == self.control_offset
        return header.producer_epoch == self.epoch


class CleanedTransactions:
    """Follows the transactions of a log while its batches are read in order."""

    __slots__ = ("_aborted", "_upcoming", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        """
        Args:
            aborted: all aborted transactions in the part that is read, ordered by first offset.
        """
        self._upcoming = deque(aborted)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._with_data: set[int] = set()

    def see_data(self, header: BatchHeader) -> bool:
        """Record a transactional data batch; return whether its transaction was aborted."""
        while self._upcoming and self._upcoming[0].first_offset <= header.base_offset:
            entry = self._upcoming.popleft()
            self._aborted[entry.producer_id] = entry
        if header.record_count:
            self._with_data.add(header.producer_id)
        aborted = self._aborted.get(header.producer_id)
        return aborted is not None and (
            aborted.first_offset <= header.base_offset < aborted.last_offset
        )

    def see_marker(self, header: BatchHeader) -> bool:
        """Record a marker; return whether its transaction has data left, so that it is kept."""
        if header.producer_id not in self._with_data:
            return False
        self._with_data.discard(header.producer_id)
        return True


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The input of one pass over a log."""

    offsets: OffsetMap
    now_ms: int
    delete_retention_ms: int
    producers: Mapping[int, LastOfProducer]
    """The batches that must be kept for each active producer."""
    transactions: CleanedTransactions
    """The transactions of the batches of the pass."""


def clean_batch(
    batch: Buffer, header: BatchHeader, cleaning: Cleaning, *, keep_empty: bool = False
) -> Steps[Buffer | None]:
    """Return what is kept of one batch.

    Records keep their offsets. A rewritten batch keeps base and last offset, producer fields and
    leader epoch, so that it still shows the producer's last sequence. A batch without records is
    removed, unless it shows an active producer's state or ``keep_empty`` is set. Then its header is
    kept.

    Args:
        keep_empty: keep at least the header, because it shows the last offset of a segment.

    Returns:
        ``batch`` itself if it is kept unchanged, other bytes if it was rewritten, None if it is
        removed.
    """
    kept: Buffer | None = batch
    if header.is_control:
        kept = yield from _clean_marker(batch, header, cleaning)
    elif header.is_transactional and cleaning.transactions.see_data(header):
        kept = None  # its transaction was aborted
    elif header.base_offset <= cleaning.offsets.latest_offset:
        kept = yield from _filter(batch, header, cleaning)
    if kept is None:
        last = cleaning.producers.get(header.producer_id)
        if keep_empty or (last is not None and last.matches(header)):
            kept = _empty(batch, header)
    return kept


def _clean_marker(batch: Buffer, header: BatchHeader, cleaning: Cleaning) -> Steps[Buffer | None]:
    """Return what is kept of a control batch.

    A marker is kept as long as its data, and after that as long as a tombstone: readers that have
    read the data must also read the marker (KIP-534).
    """
    if cleaning.transactions.see_marker(header):
        return batch
    if not header.record_count:
        return None
    if header.has_delete_horizon:
        return None if cleaning.now_ms >= header.base_timestamp else batch
    body = yield from load_records(batch, header, DEFAULT_LIMIT)
    horizon = cleaning.now_ms + cleaning.delete_retention_ms
    kept = bytes([1]) * header.record_count
    return (yield from _rewritten(header, body, kept, horizon))


def _filter(batch: Buffer, header: BatchHeader, cleaning: Cleaning) -> Steps[Buffer | None]:
    body = yield from load_records(batch, header, DEFAULT_LIMIT)
    horizon = header.base_timestamp if header.has_delete_horizon else None
    tombstones_stay = horizon is None or cleaning.now_ms < horizon
    # One byte per record: a batch can have a million of them.
    kept = bytearray(header.record_count)
    index = -1
    has_tombstone = False
    for raw in in_steps(scan_records(body, header.record_count), _RECORDS_PER_STEP):
        if raw is None:
            yield None
            continue
        index += 1
        if raw.key_length < 0:  # it was written before the topic was compacted
            continue
        if cleaning.offsets.is_latest(body, raw, header.base_offset + raw.offset_delta):
            if raw.value_length >= 0:
                kept[index] = 1
            elif tombstones_stay:
                kept[index] = 1
                has_tombstone = True
    count = kept.count(1)
    if not count:
        return None
    new_horizon = None
    if has_tombstone and horizon is None:
        new_horizon = cleaning.now_ms + cleaning.delete_retention_ms
    if new_horizon is None and count == header.record_count:
        return batch
    return (yield from _rewritten(header, body, kept, new_horizon))


def _rewritten(
    header: BatchHeader, body: Buffer, kept: bytes | bytearray, new_horizon: int | None
) -> Steps[bytearray]:
    """Return the batch with some of its records, compressed with its own codec.

    Args:
        kept: a byte per record, which is not 0 if the record is kept. At least one is.
        new_horizon: the delete horizon to set, in milliseconds since the epoch; None for no change.
    """
    base_timestamp = header.base_timestamp if new_horizon is None else new_horizon
    out = bytearray()
    index = -1
    latest: int | None = None
    for raw in in_steps(scan_records(body, header.record_count), _RECORDS_PER_STEP):
        if raw is None:
            yield None
            continue
        index += 1
        if not kept[index]:
            continue
        timestamp = header.base_timestamp + raw.timestamp_delta
        if latest is None or timestamp > latest:
            latest = timestamp
        if new_horizon is None:
            out += body[raw.start : raw.end]
        else:
            # The horizon replaces the base timestamp, so the deltas of all records change.
            encode_with_rest(out, _long(timestamp - base_timestamp), body[raw.rest : raw.end])
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time and latest is not None:
        max_timestamp = _long(min(max_timestamp, latest))
    return rebuild_batch(
        header,
        (yield from _compressed(header.codec, out)),
        attributes=header.attributes | (0 if new_horizon is None else DELETE_HORIZON_BIT),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=kept.count(1),
    )


def _compressed(codec: int, body: bytearray) -> Steps[Buffer]:
    if codec == Codec.NONE:
        return body
    if len(body) <= QUICK_INPUT:
        return compress(codec, body)
    return (yield from elsewhere(partial(compress, codec, body)))


def _long(value: int) -> int:
    # The difference of two timestamps from a client can exceed 64 bits. The log must stay readable.
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def _empty(batch: Buffer, header: BatchHeader) -> Buffer:
    if header.record_count == 0 and not header.attributes & (CODEC_MASK | DELETE_HORIZON_BIT):
        return batch
    return rebuild_batch(
        header,
        b"",
        attributes=header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
