"""The rules of compaction, compared with the result of Apache Kafka's cleaner."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden import tables
from tests.log.format.batches import batch_around
from tidemill.log.compaction.cleaning import (
    CleanedTransactions,
    Cleaning,
    LastOfProducer,
    OffsetMap,
    clean_batch,
)
from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.format.batch import Buffer, check_batch, parse_header
from tidemill.log.format.markers import Marker, decode_marker, encode_marker
from tidemill.log.format.records import NewRecord, Record, decode_records, encode_batch
from tidemill.log.steps import run_steps


def offsets_of(*batches: Buffer, max_keys: int = 100) -> OffsetMap:
    offsets = OffsetMap(max_keys)
    for batch in batches:
        assert run_steps(offsets.add_batch(batch, parse_header(batch), 0))
    return offsets


def clean(
    batch: Buffer,
    offsets: OffsetMap,
    *,
    now_ms: int = 1000,
    retention_ms: int = 100,
    producers: dict[int, int] | None = None,
    transactions: CleanedTransactions | None = None,
    keep_empty: bool = False,
) -> Buffer | None:
    last = {each: LastOfProducer(offset, 2, -1) for each, offset in (producers or {}).items()}
    cleaning = Cleaning(offsets, now_ms, retention_ms, last, transactions or CleanedTransactions())
    return run_steps(clean_batch(batch, parse_header(batch), cleaning, keep_empty=keep_empty))


def cleaned(batch: Buffer, offsets: OffsetMap, **more: Any) -> Buffer:
    """Return what is kept of a batch, which must be something."""
    kept = clean(batch, offsets, **more)
    assert kept is not None
    return kept


def batch_of(*records: tuple[bytes | None, bytes | None], base: int = 0, **more: Any) -> bytes:
    return bytes(
        encode_batch(
            [NewRecord(key, value) for key, value in records],
            timestamp_ms=500,
            base_offset=base,
            **more,
        )
    )


class _GivenOffsets(OffsetMap):
    """An offset map that keeps given offsets."""

    def __init__(self, keep: list[int]) -> None:
        super().__init__()
        self.keep = set(keep)
        self.latest_offset = 1 << 40

    def is_latest(self, body: Buffer, raw: Any, offset: int) -> bool:
        return offset in self.keep


@pytest.mark.parametrize("case", tables.filtered(), ids=lambda case: case["name"])
def test_the_result_is_the_same_as_apache_kafkas(case: dict[str, Any]) -> None:
    before = bytes.fromhex(case["before"])
    cleaned = clean(
        before,
        _GivenOffsets(case["keep"]),
        now_ms=case["now"],
        retention_ms=case["delete_retention_ms"],
        keep_empty=case["retain_empty"],
    )
    expected = bytes.fromhex(case["after"])
    if not expected:
        assert cleaned is None
        return
    assert cleaned is not None
    ours, theirs = check_batch(cleaned), check_batch(expected)
    assert decode_records(cleaned) == decode_records(expected)
    if not theirs.has_delete_horizon and theirs.record_count:
        # Kafka moves the base timestamp to the first record that stays; here it stays as it was,
        # and records are copied as they are. Both say the same.
        theirs = theirs._replace(base_timestamp=ours.base_timestamp)
        ours = ours._replace(crc=theirs.crc, batch_length=theirs.batch_length)
    if ours.codec:
        ours = ours._replace(crc=theirs.crc, batch_length=theirs.batch_length)
    elif theirs.has_delete_horizon and not theirs.is_log_append_time:
        assert bytes(cleaned) == expected
    if theirs.is_log_append_time:  # no reader uses these deltas
        ours = ours._replace(crc=theirs.crc, batch_length=theirs.batch_length)
    assert ours == theirs


def test_the_last_record_of_each_key_stays() -> None:
    first = batch_of((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    second = batch_of((b"b", b"2"), (b"c", b"1"), base=3)
    offsets = offsets_of(first, second)
    kept = cleaned(first, offsets)
    assert decode_records(kept) == [Record(2, 500, b"a", b"2")]
    assert clean(second, offsets) is second


def test_records_above_the_map_stay_untouched() -> None:
    first, second = batch_of((b"a", b"1"), (b"a", None)), batch_of((b"a", b"2"), base=2)
    assert clean(second, offsets_of(first)) is second


def test_a_tombstone_is_kept_until_its_delete_horizon() -> None:
    batch = batch_of((b"a", None), (b"b", b"1"))
    offsets = offsets_of(batch)
    kept = cleaned(batch, offsets, now_ms=1000, retention_ms=100)
    header = check_batch(kept)
    assert header.has_delete_horizon
    assert header.base_timestamp == 1100
    assert decode_records(kept) == decode_records(batch)
    assert clean(kept, offsets, now_ms=1099) is kept
    gone = cleaned(kept, offsets, now_ms=1100)
    assert decode_records(gone) == [Record(1, 500, b"b", b"1")]


def test_the_batch_with_a_producers_last_sequence_stays_as_a_header() -> None:
    fields = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40, "codec": 1}
    first = batch_of((b"a", b"1"), (b"a", b"2"), **fields)
    second = batch_of((b"a", b"3"), base=2)
    offsets = offsets_of(first, second)
    kept = cleaned(first, offsets, producers={7: 1})
    header = check_batch(kept)
    assert header.size == 61
    assert (header.base_offset, header.last_offset, header.last_sequence) == (0, 1, 41)
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert clean(kept, offsets, producers={7: 1}) is kept
    assert clean(kept, offsets, producers={7: 99}) is None
    assert clean(first, offsets, producers={8: 1}) is None


def _transactional(base: int, *records: tuple[bytes, bytes | None]) -> bytes:
    identity = {"producer_id": 1, "producer_epoch": 0, "base_sequence": base}
    return batch_of(*records, base=base, transactional=True, **identity)


def _marker(base: int, *, commit: bool, epoch: int = 0) -> bytes:
    batch = encode_marker(Marker(1, epoch, commit), timestamp_ms=1000)
    batch[:8] = base.to_bytes(8, "big")
    return bytes(batch)


def test_records_of_committed_transactions_supersede_others() -> None:
    first, second = batch_of((b"a", b"0")), _transactional(1, (b"a", b"1"))
    offsets = offsets_of(first, second)
    assert clean(first, offsets) is None
    assert clean(second, offsets) is second


def test_records_of_aborted_transactions_are_removed() -> None:
    batch = _transactional(4, (b"a", b"1"))
    aborted = AbortedTransaction(1, 4, 6, 7)
    for offsets in (offsets_of(batch), OffsetMap(1)):  # also above the offset map
        assert clean(batch, offsets, transactions=CleanedTransactions([aborted])) is None
    # What the same producer wrote before and after it is another transaction's.
    for base in (3, 7):
        other = _transactional(base, (b"b", b"1"))
        transactions = CleanedTransactions([aborted])
        assert clean(other, offsets_of(other), transactions=transactions) is other


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_with_its_data_and_then_for_the_retention_time(commit: bool) -> None:
    marker, data = _marker(5, commit=commit), _transactional(4, (b"a", b"1"))
    offsets = offsets_of(data)
    transactions = CleanedTransactions([] if commit else [AbortedTransaction(1, 4, 5, 6)])
    clean(data, offsets, transactions=transactions)
    assert clean(marker, offsets, transactions=transactions) is marker
    waiting = cleaned(marker, offsets, now_ms=1000, retention_ms=100)
    header = check_batch(waiting)
    assert (header.has_delete_horizon, header.base_timestamp) == (True, 1100)
    assert decode_marker(waiting) == Marker(1, 0, commit)
    assert decode_records(waiting)[0].timestamp == 1000
    assert clean(waiting, offsets, now_ms=1099) is waiting
    assert clean(waiting, offsets, now_ms=1100) is None


def test_the_header_of_a_marker_that_started_an_epoch_is_kept() -> None:
    marker = _marker(5, commit=True, epoch=2)
    waiting = cleaned(marker, offsets_of(), now_ms=0, retention_ms=0)
    kept = cleaned(waiting, offsets_of(), producers={1: -1})
    header = check_batch(kept)
    assert (header.record_count, header.is_control, header.producer_epoch) == (0, True, 2)
    assert decode_marker(kept) is None
    assert clean(kept, offsets_of(), producers={1: -1}) is kept
    assert clean(kept, offsets_of(), producers={1: 9}) is None


@pytest.mark.parametrize("codec", range(5))
def test_a_rewritten_batch_keeps_its_codec(codec: int) -> None:
    batch = batch_of((b"a", b"1" * 50), (b"b", b"2" * 50), (b"a", b"3" * 50), codec=codec)
    kept = cleaned(batch, offsets_of(batch))
    assert check_batch(kept).codec == codec
    assert [record.value for record in decode_records(kept)] == [b"2" * 50, b"3" * 50]


def test_a_full_map_covers_the_batches_before() -> None:
    first = batch_of((b"a", b"1"), (b"b", b"1"))
    second = batch_of((b"b", b"2"), (b"c", b"1"), base=2)
    offsets = offsets_of(first, max_keys=2)
    assert not run_steps(offsets.add_batch(second, parse_header(second), 0))
    assert (offsets.latest_offset, len(offsets)) == (1, 2)
    # A key of the batch that no longer fit may be known already: its later record stays.
    assert clean(second, offsets) is second
    kept = cleaned(first, offsets)
    assert [record.key for record in decode_records(kept)] == [b"a"]


def test_one_batch_always_fits_the_map() -> None:
    batch = batch_of(*((b"%d" % number, b"") for number in range(10)))
    assert len(offsets_of(batch, max_keys=3)) == 10


def test_offsets_below_the_dirty_section_are_not_added() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"1"))
    offsets = OffsetMap()
    assert run_steps(offsets.add_batch(batch, parse_header(batch), 1))
    assert len(offsets) == 1


def test_timestamp_differences_above_64_bits_stay_readable() -> None:
    body = bytes.fromhex("20 00 feffffffffffffffff01 00 0261 01 00")  # 2**63 - 1 ms later
    batch = bytes(batch_around(body, 1, at=500))
    kept = cleaned(batch, offsets_of(batch), now_ms=-(2**62), retention_ms=0)
    assert len(decode_records(kept)) == 1


def test_long_batches_are_cleaned_in_steps() -> None:
    batch = batch_of(*((b"%d" % number, b"") for number in range(2000)))
    offsets = OffsetMap()
    assert len(list(offsets.add_batch(batch, parse_header(batch), 0))) >= 3
    cleaning = Cleaning(offsets, 0, 0, {}, CleanedTransactions())
    assert len(list(clean_batch(batch, parse_header(batch), cleaning))) >= 3


def test_large_batches_are_decompressed_and_compressed_by_another_thread() -> None:
    rows = [(b"%d" % (number % 300), bytes(1000)) for number in range(600)]
    batch = batch_of(*rows, codec=4)
    offsets = OffsetMap()
    read = list(offsets.add_batch(batch, parse_header(batch), 0))
    assert [work.holds for work in read if work is not None] == [8 << 20]
    cleaning = Cleaning(offsets, 0, 0, {}, CleanedTransactions())
    steps = list(clean_batch(batch, parse_header(batch), cleaning))
    assert len([work for work in steps if work is not None]) == 2
    kept = cleaned(batch, offsets)
    assert [record.offset for record in decode_records(kept)] == list(range(300, 600))
