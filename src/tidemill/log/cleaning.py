"""The cleaner's rules: which records of a compacted log stay, and how a batch is rewritten.

Pure: bytes in, bytes out. Knows nothing of segments, files or when cleaning is due; that stands in
``compaction``. A batch can hold tens of thousands of records, so what walks over records is a
generator that yields in between: an event loop can run it in slices.

Sources: Kafka documentation, "Log Compaction"; KIP-98 (empty batches keep sequences), and
KIP-534 (a tombstone's delete horizon: attribute bit 6 is set and the batch's base timestamp is the
time from which the tombstone, or a transaction's marker, may go).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from tidemill.log.aborted import AbortedTransaction
from tidemill.log.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    build_batch,
)
from tidemill.log.compression import DEFAULT_LIMIT, compress
from tidemill.log.records import RawRecord, encode_with_rest, records_body, scan_records

DEFAULT_MAP_KEYS = 250_000
"""Keys that an offset map holds, about 40 MB. A log with more dirty keys takes several passes."""

_RECORDS_PER_STEP = 512


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning did, in records and bytes."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    records_without_key: int = 0
    """Dropped: they were written before the topic was compacted."""


class OffsetMap:
    """The latest offset of each key in the dirty part of a log, in bounded memory.

    Keys are kept as 16-byte hashes. ``latest_offset`` is the last offset that the map covers: it
    says nothing of records above it, and they all stay.
    """

    def __init__(self, max_keys: int = DEFAULT_MAP_KEYS) -> None:
        if max_keys < 1:
            raise ValueError("an offset map needs room for a key")
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    def add_batch(
        self, batch: Buffer, header: BatchHeader, start_offset: int
    ) -> Generator[None, None, bool]:
        """Take in the keys of a batch that are at or above ``start_offset``.

        Control batches only move ``latest_offset``; those of aborted transactions must not be
        brought here.

        Returns:
            False where the map is full: the batch is not covered, though some keys of it may be
            known. (That is safe: a key's later record is known to exist, and stays.) The first
            batch is always covered, so that there is progress.

        Raises:
            InvalidRecordError: the records are not well-formed.
        """
        if not header.is_control:
            body = records_body(batch, header, limit=DEFAULT_LIMIT)
            offsets = self._offsets
            # What was met below the start (a pass begins where the index points) is no progress.
            may_refuse = self.latest_offset >= start_offset
            for raw in _in_steps(scan_records(body, header.record_count)):
                if raw is None:
                    yield
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

    def is_latest(self, body: bytes, raw: RawRecord, offset: int) -> bool:
        """Whether no later record of this key is known."""
        return offset >= self._offsets.get(_digest(body, raw), -1)


def _in_steps(records: Iterator[RawRecord]) -> Iterator[RawRecord | None]:
    for count, raw in enumerate(records, 1):
        yield raw
        if not count % _RECORDS_PER_STEP:
            yield None


def _digest(body: bytes, raw: RawRecord) -> bytes:
    key = body[raw.key_start : raw.key_start + raw.key_length]
    return blake2b(key, digest_size=16).digest()


class LastOfProducer(NamedTuple):
    """The batch that tells a producer's state: its last data batch with sequences, or where that is
    -1 the last control batch of its epoch; where that is not known either, each of its epoch."""

    offset: int
    epoch: int
    control_offset: int

    def is_told_by(self, header: BatchHeader) -> bool:
        """Whether this batch is it."""
        if self.offset >= 0:
            return header.last_offset == self.offset
        if self.control_offset >= 0:
            return header.last_offset == self.control_offset
        return header.producer_epoch == self.epoch


class CleanedTransactions:
    """Follows the transactions of a log through its batches, in order."""

    __slots__ = ("_aborted", "_coming", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        """
        Args:
            aborted: all that touch what is to be read, by first offset.
        """
        self._coming = deque(aborted)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._with_data: set[int] = set()

    def see_data(self, header: BatchHeader) -> bool:
        """A transactional data batch comes; returns whether its transaction was aborted."""
        while self._coming and self._coming[0].first_offset <= header.base_offset:
            entry = self._coming.popleft()
            self._aborted[entry.producer_id] = entry
        if header.record_count:
            self._with_data.add(header.producer_id)
        aborted = self._aborted.get(header.producer_id)
        return aborted is not None and (
            aborted.first_offset <= header.base_offset < aborted.last_offset
        )

    def see_marker(self, header: BatchHeader) -> bool:
        """A marker comes; returns whether there was data in front of it, so that it must stay."""
        if header.producer_id not in self._with_data:
            return False
        self._with_data.discard(header.producer_id)
        return True


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What one pass over a log goes by."""

    offsets: OffsetMap
    now_ms: int
    delete_retention_ms: int
    producers: Mapping[int, LastOfProducer]
    """What tells the state of each active producer, and has to stay."""
    transactions: CleanedTransactions
    """Of all batches of the pass, in order."""


def clean_batch(
    batch: Buffer,
    header: BatchHeader,
    cleaning: Cleaning,
    stats: CleaningStats,
    *,
    keep_empty: bool = False,
) -> Generator[None, None, Buffer | None]:
    """What is left of one batch.

    Offsets never change, and base and last offset, producer fields and leader epoch stay, so that
    the last sequence can still be told. A batch of which nothing is left goes, but for one that
    tells an active producer's state, or with ``keep_empty``: then its header stays, without
    records.

    Args:
        batch: exactly the batch's bytes.
        header: its header.
        cleaning: the pass.
        stats: counts, added to.
        keep_empty: keep the header at least, because the last offset of a segment is told by it.

    Returns:
        The same object where all of it stays, other bytes where it was rewritten, None where it
        goes.

    Raises:
        InvalidRecordError: the records are not well-formed.
    """
    stats.bytes_read += header.size
    stats.records_read += header.record_count
    kept: Buffer | None = batch
    count = header.record_count
    aborted = False
    if header.is_control:
        kept, count = _clean_marker(batch, header, cleaning)
    elif header.is_transactional:
        aborted = cleaning.transactions.see_data(header)
    if aborted:
        kept, count = None, 0
    elif not header.is_control and header.base_offset <= cleaning.offsets.latest_offset:
        kept, count = yield from _filter(batch, header, cleaning, stats)
    if kept is None:
        last = cleaning.producers.get(header.producer_id)
        if keep_empty or (last is not None and last.is_told_by(header)):
            kept = _empty(batch, header)
    if kept is not None:
        stats.bytes_kept += len(kept)
        stats.records_kept += count
    return kept


def _clean_marker(
    batch: Buffer, header: BatchHeader, cleaning: Cleaning
) -> tuple[Buffer | None, int]:
    """A marker stays for its data, and after that as long as a tombstone: readers that have seen
    the data must see how it ended (KIP-534)."""
    if cleaning.transactions.see_marker(header):
        return batch, header.record_count
    if not header.record_count:
        return None, 0
    if header.has_delete_horizon:
        if cleaning.now_ms >= header.base_timestamp:
            return None, 0
        return batch, header.record_count
    body = records_body(batch, header, limit=DEFAULT_LIMIT)
    horizon = cleaning.now_ms + cleaning.delete_retention_ms
    kept = list(scan_records(body, header.record_count))
    return rewrite_batch(header, body, kept, horizon), header.record_count


def _filter(
    batch: Buffer, header: BatchHeader, cleaning: Cleaning, stats: CleaningStats
) -> Generator[None, None, tuple[Buffer | None, int]]:
    body = records_body(batch, header, limit=DEFAULT_LIMIT)
    horizon = header.base_timestamp if header.has_delete_horizon else None
    tombstones_stay = horizon is None or cleaning.now_ms < horizon
    kept: list[RawRecord] = []
    has_tombstone = False
    for raw in _in_steps(scan_records(body, header.record_count)):
        if raw is None:
            yield
        elif raw.key_length < 0:
            stats.records_without_key += 1
        elif cleaning.offsets.is_latest(body, raw, header.base_offset + raw.offset_delta):
            if raw.value_length >= 0:
                kept.append(raw)
            elif tombstones_stay:
                kept.append(raw)
                has_tombstone = True
    if not kept:
        return None, 0
    new_horizon = None
    if has_tombstone and horizon is None:
        new_horizon = cleaning.now_ms + cleaning.delete_retention_ms
    if new_horizon is None and len(kept) == header.record_count:
        return batch, len(kept)
    return rewrite_batch(header, body, kept, new_horizon), len(kept)


def rewrite_batch(
    header: BatchHeader, body: bytes, kept: list[RawRecord], new_horizon: int | None
) -> bytearray:
    """The batch with these of its records only, compressed with its own codec.

    Args:
        header: the batch's header.
        body: its records, decompressed.
        kept: the records that stay, at least one.
        new_horizon: the delete horizon to set, in milliseconds since the epoch.
    """
    base_timestamp = header.base_timestamp
    attributes = header.attributes
    out = bytearray()
    if new_horizon is None:
        for raw in kept:
            out += body[raw.start : raw.end]
    else:
        # The base timestamp becomes the horizon, so each record's delta changes with it.
        shift = base_timestamp - new_horizon
        base_timestamp = new_horizon
        attributes |= DELETE_HORIZON_BIT
        for raw in kept:
            encode_with_rest(out, _long(raw.timestamp_delta + shift), body[raw.rest : raw.end])
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        latest = max(header.base_timestamp + raw.timestamp_delta for raw in kept)
        max_timestamp = _long(min(max_timestamp, latest))
    return build_batch(
        base_offset=header.base_offset,
        body=compress(header.codec, out),
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _long(value: int) -> int:
    # A client may have sent timestamps whose differences leave 64 bits; the log must stay readable.
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def _empty(batch: Buffer, header: BatchHeader) -> Buffer:
    if header.record_count == 0 and not header.attributes & (CODEC_MASK | DELETE_HORIZON_BIT):
        return batch
    return build_batch(
        base_offset=header.base_offset,
        body=b"",
        attributes=header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        record_count=0,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
