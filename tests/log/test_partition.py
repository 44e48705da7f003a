"""One partition: what is accepted, when it rolls, what readers get, and how writes fail."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_log, open_store, read_records
from tidemill.clock import ManualClock
from tidemill.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    CorruptLogError,
    DiskFullError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    StorageError,
    SyncFailedError,
    TidemillError,
)
from tidemill.log.batch import iter_headers, parse_header
from tidemill.log.partition import PartitionLog
from tidemill.log.records import NewRecord, decode_records, encode_batch
from tidemill.log.store import LogStore

NOW = 1_700_000_000_000
HOUR = 3_600_000


class Setup:
    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(NOW)
        self.store: LogStore = open_store("/data", self.clock, self.fs)

    def log(self, **configs: str) -> PartitionLog:
        return open_log(self.store, {k.replace("_", "."): v for k, v in configs.items()})

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store("/data", self.clock, self.fs)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def _batch(count: int = 1, *, size: int = 10, at: int = NOW, **fields: int) -> bytearray:
    records = [NewRecord(b"k", bytes(size)) for _ in range(count)]
    return encode_batch(records, timestamp_ms=at, **fields)  # type: ignore[arg-type]


# --- appending -----------------------------------------------------------------------------------


def test_offsets_follow_each_other_and_are_stamped(setup: Setup) -> None:
    log = setup.log()
    assert log.append(_batch(3, base_offset=77), now_ms=NOW)[:2] == (0, 2)
    assert log.append(_batch(2), now_ms=NOW)[:2] == (3, 4)
    log.flush()
    found = log.read(0, 10_000, limit_offset=5)
    assert found is not None
    assert [header.base_offset for _, header in iter_headers(found.load())] == [0, 3]
    assert [record.offset for record in read_records(log)] == list(range(5))


def test_stored_bytes_are_the_producers_but_for_offset_and_epoch(setup: Setup) -> None:
    log = setup.log()
    sent = _batch(3, codec=4)
    original = bytes(sent)
    log.append(_batch(), now_ms=NOW)
    log.append(sent, now_ms=NOW)
    log.flush()
    found = log.read(1, 10_000, limit_offset=4)
    assert found is not None
    stored = bytes(found.load())
    assert stored[16:] == original[16:]
    assert stored[8:12] == original[8:12]


def test_a_read_only_buffer_is_accepted(setup: Setup) -> None:
    assert setup.log().append(bytes(_batch()), now_ms=NOW).first_offset == 0


def test_several_batches_are_appended_together_or_not_at_all(setup: Setup) -> None:
    log = setup.log()
    assert log.append(_batch(2) + _batch(3), now_ms=NOW)[:2] == (0, 4)
    bad = _batch(1)
    bad[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        log.append(_batch(2) + bad, now_ms=NOW)
    assert log.log_end_offset == 5


def test_a_batch_with_a_wrong_crc_is_refused(setup: Setup) -> None:
    log = setup.log()
    bad = _batch()
    bad[70] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        log.append(bad, now_ms=NOW)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"control": True}, InvalidRecordError),
        ({"transactional": True}, InvalidRecordError),
        ({"log_append_time": True}, InvalidTimestampError),
        ({"at": NOW + 2 * HOUR}, InvalidTimestampError),
        ({"producer_id": 1}, InvalidRecordError),
    ],
)
def test_batches_that_clients_may_not_send(
    setup: Setup, fields: dict[str, int], error: type[TidemillError]
) -> None:
    log = setup.log()
    with pytest.raises(error):
        log.append(_batch(**fields), now_ms=NOW)
    assert log.log_end_offset == 0


def test_nothing_at_all_is_refused(setup: Setup) -> None:
    with pytest.raises(CorruptBatchError):
        setup.log().append(b"", now_ms=NOW)


def test_a_batch_above_max_message_bytes_is_refused(setup: Setup) -> None:
    log = setup.log(max_message_bytes="200")
    with pytest.raises(BatchTooLargeError, match="200 are allowed"):
        log.append(_batch(size=200), now_ms=NOW)


def test_a_timestamp_may_be_old_unless_the_topic_says_no(setup: Setup) -> None:
    assert setup.log().append(_batch(at=0), now_ms=NOW).first_offset == 0
    with pytest.raises(InvalidTimestampError, match="behind"):
        setup.log(message_timestamp_before_max_ms="1000").append(_batch(at=NOW - 2000), now_ms=NOW)


def test_log_append_time_is_the_brokers(setup: Setup) -> None:
    log = setup.log(message_timestamp_type="LogAppendTime")
    info = log.append(_batch(2, at=NOW + 5 * HOUR), now_ms=NOW)
    assert info.log_append_time_ms == NOW
    log.flush()
    assert [record.timestamp for record in read_records(log)] == [NOW, NOW]
    assert log.offset_for_timestamp(NOW) == (0, NOW)


def test_a_compacted_topic_wants_keys(setup: Setup) -> None:
    log = setup.log(cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key"):
        log.append(encode_batch([NewRecord(None, b"v")], timestamp_ms=NOW), now_ms=NOW)


@pytest.mark.parametrize("codec", range(5))
def test_the_broker_recompresses_where_the_topic_says_how(setup: Setup, codec: int) -> None:
    log = setup.log(compression_type="zstd")
    batch = _batch(3, size=500, codec=codec, producer_id=5, producer_epoch=0, base_sequence=0)
    assert log.append(batch, now_ms=NOW)[:2] == (0, 2)
    log.flush()
    found = log.read(0, 10_000, limit_offset=3)
    assert found is not None
    header = parse_header(found.load())
    assert (header.codec, header.producer_id, header.base_sequence) == (4, 5, 0)
    assert [record.value for record in read_records(log)] == [bytes(500)] * 3


def test_a_repeated_batch_is_answered_with_its_first_offset(setup: Setup) -> None:
    log = setup.log()
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    log.append(_batch(), now_ms=NOW)
    first = log.append(_batch(3, **fields), now_ms=NOW)
    again = log.append(_batch(3, **fields), now_ms=NOW)
    assert not first.duplicate
    assert again.duplicate
    assert again[:2] == first[:2] == (1, 3)
    assert log.log_end_offset == 4


@pytest.mark.parametrize("clean", [True, False])
def test_the_five_batch_window_survives_a_restart(setup: Setup, clean: bool) -> None:
    log = setup.log()
    for sequence in range(7):
        log.append(_batch(producer_id=5, producer_epoch=0, base_sequence=sequence), now_ms=NOW)
    if clean:
        setup.reopen()
    else:
        setup.fs.kill()
        setup.store = open_store("/data", setup.clock, setup.fs)
    for sequence in range(2, 7):
        batch = _batch(producer_id=5, producer_epoch=0, base_sequence=sequence)
        info = setup.log().append(batch, now_ms=NOW)
        assert (info.duplicate, info.first_offset) == (True, sequence)


def test_silent_producers_are_forgotten(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(producer_id=5, producer_epoch=0, base_sequence=0), now_ms=NOW)
    assert log.expire_producers(NOW + 999, 1000) == 0
    assert log.expire_producers(NOW + 1000, 1000) == 1
    setup.reopen()
    assert setup.log().expire_producers(NOW + 9999, 1000) == 0  # none were read for it


# --- rolling -------------------------------------------------------------------------------------


def _bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_segment_rolls_before_it_would_pass_its_size(setup: Setup) -> None:
    size = len(_batch())
    log = setup.log(internal_segment_bytes=str(3 * size))
    for _ in range(7):
        log.append(_batch(), now_ms=NOW)
    assert _bases(log) == [0, 3, 6]


def test_a_segment_rolls_by_record_time(setup: Setup) -> None:
    log = setup.log(segment_ms="1000")
    for at in (0, 1000, 1001, 500):
        log.append(_batch(at=NOW - HOUR + at), now_ms=NOW)
    assert _bases(log) == [0, 2]


def test_a_segment_rolls_by_record_time_after_a_restart_too(setup: Setup) -> None:
    setup.log(segment_ms="1000").append(_batch(at=NOW - HOUR), now_ms=NOW)
    setup.reopen()
    log = setup.log(segment_ms="1000")
    log.append(_batch(at=NOW - HOUR + 1001), now_ms=NOW)
    assert _bases(log) == [0, 1]


def test_records_without_time_roll_by_the_segments_age(setup: Setup) -> None:
    log = setup.log(segment_ms="1000")
    log.append(_batch(at=-1), now_ms=NOW)
    log.append(_batch(at=-1), now_ms=NOW + 1000)
    log.append(_batch(at=-1), now_ms=NOW + 1001)
    assert _bases(log) == [0, 2]


def test_a_segment_rolls_when_its_index_is_full(setup: Setup) -> None:
    log = setup.log(segment_index_bytes="64", index_interval_bytes="0")
    for number in range(20):
        log.append(_batch(at=NOW + number), now_ms=NOW)
    assert len(log.segments) > 2
    for segment in log.segments:
        assert max(segment.index_sizes()) <= 64
    log.flush()
    assert [record.offset for record in read_records(log)] == list(range(20))


def test_a_segment_rolls_before_relative_offsets_overflow(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(), now_ms=NOW)
    log.log_end_offset = 0x80000000
    log.append(_batch(), now_ms=NOW)
    assert _bases(log) == [0, 0x80000000]


def test_an_empty_segment_does_not_roll(setup: Setup) -> None:
    log = setup.log()
    assert log.roll(NOW) is log.active
    assert len(log.segments) == 1


# --- reading -------------------------------------------------------------------------------------


def test_readers_see_nothing_above_the_limit(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(2), now_ms=NOW)
    log.flush()
    log.append(_batch(2), now_ms=NOW)
    assert log.high_watermark == 2
    found = log.read(0, 10_000, limit_offset=log.high_watermark)
    assert found is not None
    assert [header.last_offset for _, header in iter_headers(found.load())] == [1]
    assert log.read(2, 10_000, limit_offset=2) is None
    assert log.read(2, 10_000, limit_offset=4) is not None


@pytest.mark.parametrize("offset", [-1, 4, 99])
def test_offsets_outside_the_log_are_refused(setup: Setup, offset: int) -> None:
    log = setup.log()
    log.append(_batch(3), now_ms=NOW)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 2"):
        log.read(offset, 100, limit_offset=3)
    assert log.read(3, 100, limit_offset=3) is None


@pytest.mark.parametrize("restarted", [True, False])
def test_a_read_starts_with_the_batch_that_holds_the_offset(setup: Setup, restarted: bool) -> None:
    configs = {"internal_segment_bytes": "3000", "index_interval_bytes": "150"}
    log = setup.log(**configs)
    for _ in range(60):
        log.append(_batch(3, size=30), now_ms=NOW)
    if restarted:
        setup.reopen()
        log = setup.log(**configs)
    assert len(log.segments) > 2
    for offset in range(180):
        found = log.read(offset, 1, limit_offset=180)
        assert found is not None
        header = parse_header(found.load())
        assert header.base_offset <= offset <= header.last_offset


def test_a_first_batch_that_is_too_large_is_given_whole_or_not_at_all(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(size=500), now_ms=NOW)
    whole = log.read(0, 100, limit_offset=1)
    assert whole is not None
    assert len(decode_records(whole.load())) == 1
    nothing = log.read(0, 100, limit_offset=1, min_one=False)
    assert nothing is not None
    assert (nothing.size, bytes(nothing.load()), nothing.load_nowait()) == (0, b"", b"")


def test_cold_bytes_are_left_to_a_thread(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(), now_ms=NOW)
    setup.fs.cold = True
    found = log.read(0, 100, limit_offset=1)
    assert found is not None
    assert found.load_nowait() is None
    assert len(found.load()) == found.size


def test_a_reader_that_found_its_place_keeps_it_when_the_segment_goes(setup: Setup) -> None:
    log = setup.log(internal_segment_bytes="300")
    for _ in range(9):
        log.append(_batch(size=50), now_ms=NOW)
    log.flush()
    found = log.read(0, 100, limit_offset=9)
    assert found is not None
    log.delete_records_before(9)
    assert parse_header(found.load()).base_offset == 0
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, 100, limit_offset=9)


def test_old_bytes_are_proven_once_when_they_are_first_read(setup: Setup) -> None:
    log = setup.log()
    for _ in range(4):
        log.append(_batch(size=50), now_ms=NOW)
    setup.reopen()
    log = setup.log()
    data = setup.fs.content("/data/t-0/00000000000000000000.log")
    size = len(data) // 4
    data[2 * size + 100] ^= 1
    found = log.read(0, 2 * size + 10, limit_offset=4)
    assert found is not None
    assert len(found.load()) == 2 * size + 10
    bad = log.read(2, 10_000, limit_offset=4)
    assert bad is not None
    with pytest.raises(CorruptLogError) as caught:
        bad.load()
    assert (caught.value.position, caught.value.offset) == (2 * size, 2)
    before = log.read(0, 10_000, limit_offset=4)
    assert before is not None
    assert len(before.load()) == 2 * size
    data[2 * size + 100] ^= 1
    found = log.read(0, 10_000, limit_offset=4)
    assert found is not None
    assert not found.is_verified()
    assert len(found.load()) == 4 * size
    assert found.is_verified()


# --- timestamps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 2])
def test_a_timestamp_is_found_to_the_record(setup: Setup, codec: int) -> None:
    log = setup.log(internal_segment_bytes="400", index_interval_bytes="0")
    for start in range(0, 60, 3):
        records = [NewRecord(b"k", b"v", (), NOW + 10 * (start + i)) for i in range(3)]
        log.append(encode_batch(records, timestamp_ms=NOW, codec=codec), now_ms=NOW)
    log.flush()
    assert len(log.segments) > 2
    for number in range(60):
        at = NOW + 10 * number
        assert log.offset_for_timestamp(at) == (number, at)
        assert log.offset_for_timestamp(at - 9) == (number, at)
    assert log.offset_for_timestamp(NOW + 591) is None
    assert log.offset_of_max_timestamp() == (59, NOW + 590)


def test_out_of_order_times_give_the_first_record_that_is_late_enough(setup: Setup) -> None:
    log = setup.log(index_interval_bytes="0")
    for delta in (50, 10, 90, 20, 90):
        log.append(_batch(at=NOW + delta), now_ms=NOW)
    log.flush()
    assert log.offset_for_timestamp(NOW + 15) == (0, NOW + 50)
    assert log.offset_for_timestamp(NOW + 51) == (2, NOW + 90)
    assert log.offset_of_max_timestamp() == (2, NOW + 90)
    log.delete_records_before(3)
    assert log.offset_for_timestamp(NOW) == (3, NOW + 20)
    assert log.offset_of_max_timestamp() == (4, NOW + 90)


def test_an_empty_log_has_no_timestamps(setup: Setup) -> None:
    log = setup.log()
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


# --- syncing -------------------------------------------------------------------------------------


def test_a_new_partition_is_synced_with_its_folder_once(setup: Setup) -> None:
    log = setup.log()
    ticket = log.begin_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    assert log.begin_sync() is None


def test_appends_during_a_sync_belong_to_the_next_one(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(2), now_ms=NOW)
    ticket = log.begin_sync()
    assert ticket is not None
    log.append(_batch(3), now_ms=NOW)
    ticket.run()
    log.finish_sync(ticket)
    assert log.high_watermark == ticket.end_offset == 2
    later = log.begin_sync()
    assert later is not None
    later.run()
    log.finish_sync(later)
    assert log.high_watermark == 5
    assert log.begin_sync() is None


def test_rolled_segments_are_part_of_the_next_sync(setup: Setup) -> None:
    log = setup.log(internal_segment_bytes="300")
    log.flush()
    for _ in range(9):
        log.append(_batch(size=50), now_ms=NOW)
    assert len(log.segments) > 2
    # Their records are synced by the roll, so that a power cut tears none in the middle; what
    # readers see and the recovery point wait for the sync that has the indexes, too.
    assert all(segment.synced_size == segment.size for segment in log.segments[:-1])
    assert log.segments[-1].synced_size == 0
    assert log.high_watermark == 0
    setup.store.checkpoint()
    assert log.recovery_point == 0
    log.flush()
    assert sum(segment.synced_size for segment in log.segments) == log.size_bytes
    assert log.high_watermark == 9
    setup.store.checkpoint()
    assert log.recovery_point > 0


def test_a_ticket_that_was_not_run_can_not_be_finished(setup: Setup) -> None:
    log = setup.log()
    ticket = log.begin_sync()
    assert ticket is not None
    with pytest.raises(RuntimeError):
        log.finish_sync(ticket)


def test_a_failing_sync_raises_the_high_watermark_never(setup: Setup) -> None:
    log = setup.log()
    log.flush()
    log.append(_batch(), now_ms=NOW)
    ticket = log.begin_sync()
    assert ticket is not None
    setup.fs.fail("sync")
    with pytest.raises(SyncFailedError):
        ticket.run()
    assert log.high_watermark == 0
    with pytest.raises(SyncFailedError):
        log.flush()  # even though the disk would say yes now
    with pytest.raises(SyncFailedError):
        setup.store.close()
    assert not setup.fs.exists("/data/clean-stop.json")


def test_a_partition_deleted_during_a_sync_is_no_failed_sync(setup: Setup) -> None:
    log = setup.log(internal_segment_bytes="300")
    for _ in range(9):
        log.append(_batch(size=50), now_ms=NOW)
    ticket = log.begin_sync()
    assert ticket is not None
    setup.store.delete(TP)
    setup.store.purge_deleted()
    ticket.run()
    log.finish_sync(ticket)


# --- a disk that says no -------------------------------------------------------------------------


def test_a_full_disk_refuses_the_write_and_keeps_the_log(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(), now_ms=NOW)
    setup.fs.capacity = setup.fs.used() + 50
    with pytest.raises(DiskFullError):
        log.append(_batch(size=100), now_ms=NOW)
    assert log.log_end_offset == 1
    setup.fs.heal()
    assert log.append(_batch(), now_ms=NOW).first_offset == 1
    log.flush()
    assert [record.offset for record in read_records(log)] == [0, 1]


def test_a_disk_that_fills_up_while_rolling_leaves_the_segment_in_use(setup: Setup) -> None:
    log = setup.log(internal_segment_bytes="300")
    for _ in range(2):
        log.append(_batch(size=50), now_ms=NOW)
    setup.fs.capacity = setup.fs.used()
    with pytest.raises(DiskFullError):
        log.append(_batch(size=50), now_ms=NOW)
    assert _bases(log) == [0]
    setup.fs.heal()
    log.append(_batch(size=50), now_ms=NOW)
    assert _bases(log) == [0, 2]
    log.flush()
    assert [record.offset for record in read_records(log)] == [0, 1, 2]


def test_a_refused_sequence_may_be_sent_again(setup: Setup) -> None:
    log = setup.log()
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    setup.fs.fail("write", path=".log")
    with pytest.raises(StorageError):
        log.append(_batch(**fields), now_ms=NOW)
    info = log.append(_batch(**fields), now_ms=NOW)
    assert (info.first_offset, info.duplicate) == (0, False)


def test_a_write_that_cannot_be_undone_takes_the_partition_offline(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(), now_ms=NOW)
    log.flush()
    setup.fs.capacity = setup.fs.used() + 30
    setup.fs.fail("truncate")
    with pytest.raises(StorageError):
        log.append(_batch(), now_ms=NOW)
    setup.fs.heal()
    assert TP in setup.store.offline
    with pytest.raises(StorageError):
        log.append(_batch(), now_ms=NOW)
    with pytest.raises(StorageError):
        log.read(0, 100, limit_offset=1)
    setup.store.close()
    setup.store = open_store("/data", setup.clock, setup.fs)
    log = setup.log()
    assert [record.offset for record in read_records(log)] == [0]
    assert setup.store.reports[0].removed_bytes == 30


# --- the log's start -----------------------------------------------------------------------------


def test_records_below_an_offset_are_deleted(setup: Setup) -> None:
    log = setup.log(internal_segment_bytes="300")
    for _ in range(9):
        log.append(_batch(size=50), now_ms=NOW)
    log.flush()
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    assert log.segments[0].base_offset <= 5
    assert len(log.segments) < 5
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 100, limit_offset=9)
    setup.store.checkpoint()
    setup.fs.kill()
    setup.store = open_store("/data", setup.clock, setup.fs)
    assert setup.log().log_start_offset == 5


def test_records_above_the_high_watermark_can_not_be_deleted(setup: Setup) -> None:
    log = setup.log()
    log.append(_batch(), now_ms=NOW)
    with pytest.raises(OffsetOutOfRangeError, match="up to 0"):
        log.delete_records_before(1)


def test_a_log_that_was_emptied_goes_on_at_its_offset(setup: Setup) -> None:
    log = setup.log()
    for _ in range(3):
        log.append(_batch(), now_ms=NOW)
    log.flush()
    log.delete_records_before(3)
    setup.reopen()
    log = setup.log()
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.append(_batch(), now_ms=NOW).first_offset == 3


def test_a_batch_with_a_delete_horizon_is_refused_because_only_the_cleaner_sets_one(
    setup: Setup,
) -> None:
    log = setup.log(cleanup_policy="compact")
    batch = _batch()
    batch[22] |= 0x40
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    with pytest.raises(InvalidRecordError, match="delete horizon"):
        log.append(batch, now_ms=NOW)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("find", ["offset_for_timestamp", "offset_of_max_timestamp"])
def test_lookups_by_time_do_not_read_what_was_deleted(setup: Setup, find: str) -> None:
    log = setup.log()
    log.append(_batch(size=5000, at=NOW + 1000), now_ms=NOW)
    for number in range(20):
        log.append(_batch(size=5000, at=NOW + number), now_ms=NOW)
    log.flush()
    log.delete_records_before(15)
    setup.fs.content(log.active.path())[30_000] ^= 1
    found = getattr(log, find)(*([NOW] if find == "offset_for_timestamp" else []))
    assert found == ((15, NOW + 14) if find == "offset_for_timestamp" else (20, NOW + 19))
