"""Reads from a partition, by offset and by timestamp."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.log.partition.one_partition import NOW, OnePartition, batch_of
from tests.support.logs import find_slice
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import CorruptLogError, OffsetOutOfRangeError, StorageError
from tidemill.log.format.batch import iter_headers, parse_header
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.partition.reading import search
from tidemill.log.steps import Steps, run_steps


def test_readers_see_nothing_above_the_limit(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_of(2), now_ms=NOW)
    log.flush()
    log.append(batch_of(2), now_ms=NOW)
    assert log.high_watermark == 2
    found = find_slice(log, 0, 10_000)
    assert [header.last_offset for _, header in iter_headers(found.load())] == [1]
    assert log.read(2, 10_000, limit_offset=2) is None
    assert log.read(2, 10_000, limit_offset=4) is not None


@pytest.mark.parametrize("offset", [-1, 4, 99])
def test_offsets_outside_the_log_are_refused(partition: OnePartition, offset: int) -> None:
    log = partition.log()
    log.append(batch_of(3), now_ms=NOW)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 2"):
        log.read(offset, 100, limit_offset=3)
    assert log.read(3, 100, limit_offset=3) is None


@pytest.mark.parametrize("restarted", [True, False])
def test_a_read_starts_with_the_batch_that_holds_the_offset(
    partition: OnePartition, restarted: bool
) -> None:
    configs = {"internal_segment_bytes": "3000", "index_interval_bytes": "150"}
    log = partition.log(**configs)
    for _ in range(60):
        log.append(batch_of(3, size=30), now_ms=NOW)
    if restarted:
        partition.reopen()
        log = partition.log(**configs)
    assert len(log.segments) > 2
    for offset in range(180):
        found = find_slice(log, offset, 1, limit_offset=180)
        header = parse_header(found.load())
        assert header.base_offset <= offset <= header.last_offset


def test_a_first_batch_that_is_too_large_is_given_whole_or_not_at_all(
    partition: OnePartition,
) -> None:
    log = partition.filled(1, size=500)
    whole = find_slice(log, 0, 100, limit_offset=1)
    assert len(decode_records(whole.load())) == 1
    nothing = log.read(0, 100, limit_offset=1, min_one=False)
    assert nothing is not None
    assert (nothing.size, bytes(nothing.load()), nothing.load_nowait()) == (0, b"", b"")


@pytest.mark.parametrize("state", ["active", "closed", "restarted"])
def test_a_long_read_that_is_cut_ends_between_two_batches(
    partition: OnePartition, state: str
) -> None:
    configs = {"index_interval_bytes": "1000"}
    log = partition.log(**configs)
    for number in range(120):
        log.append(batch_of(size=100 + 37 * number), now_ms=NOW)
    log.flush()
    if state == "closed":
        log.roll(now_ms=NOW)
    elif state == "restarted":
        partition.reopen()
        log = partition.log(**configs)
    offset = 0
    while offset < 120:
        limit = 70_000 + 100 * offset
        found = find_slice(log, offset, limit, limit_offset=120)
        headers = [header for _, header in iter_headers(found.load())]
        assert headers[0].base_offset == offset
        assert sum(header.size for header in headers) == found.size <= limit
        offset = headers[-1].last_offset + 1
        if offset < 120:
            assert found.found == limit  # what a reader that waits for this many bytes looks at
            assert limit - found.size < 10_000
        else:
            assert found.found == found.size


def test_a_short_read_is_cut_anywhere_and_so_is_one_of_large_batches(
    partition: OnePartition,
) -> None:
    log = partition.filled(4, size=50_000)
    short = find_slice(log, 0, 60_000, limit_offset=4)
    assert short.size == short.found == 60_000
    long = find_slice(log, 0, 99_000, limit_offset=4)
    assert long.size < 51_000
    log.append(batch_of(size=900_000), now_ms=NOW)
    whole = find_slice(log, 4, 70_000, limit_offset=5)
    assert whole.size > 900_000


@pytest.mark.parametrize("damage", ["lost", "zeros", "too far", "backwards"])
def test_a_wrong_index_cuts_a_long_read_elsewhere_and_never_before_its_first_batch(
    partition: OnePartition, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = partition.filled(100, size=2000, index_interval_bytes="1000")
    log.roll(now_ms=NOW)
    segment = log.segments[0]
    path = segment.path(".index")
    entries = partition.fs.read_bytes(path)
    wrong = {
        "lost": None,
        "zeros": bytes(len(entries)),
        "too far": b"\x00\x00\x00\x01\x7f\xff\xff\xff" * 9,
        "backwards": b"".join(entries[at : at + 8] for at in range(len(entries) - 8, -8, -8)),
    }[damage]
    place = find_slice(log, 50, 70_000, limit_offset=100)
    maps = type(segment._env.maps)

    def get(self: object, of: str) -> bytes:
        if wrong is None:
            raise FileNotFoundError(of)
        return wrong

    monkeypatch.setattr(maps, "get", get)
    monkeypatch.setattr("tidemill.log.partition.reading.locate", lambda *_: (place.position, 2100))
    found = find_slice(log, 50, 70_000, limit_offset=100)
    assert 2100 <= found.size <= 70_000
    assert found.found == 70_000


def test_cold_bytes_are_left_to_a_thread(partition: OnePartition) -> None:
    log = partition.filled(1)
    partition.fs.cold = True
    found = find_slice(log, 0, 100, limit_offset=1)
    assert found.load_nowait() is None
    assert len(found.load()) == found.size


def test_a_slice_stays_readable_when_its_segment_is_removed(partition: OnePartition) -> None:
    log = partition.filled(9, internal_segment_bytes="300")
    found = find_slice(log, 0, 100, limit_offset=9)
    log.delete_records_before(9)
    assert parse_header(found.load()).base_offset == 0
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, 100, limit_offset=9)


def test_old_bytes_are_verified_once_at_the_first_read(partition: OnePartition) -> None:
    partition.filled(4)
    partition.reopen()
    log = partition.log()
    data = partition.fs.content("/data/t-0/00000000000000000000.log")
    size = len(data) // 4
    data[2 * size + 100] ^= 1
    found = find_slice(log, 0, 2 * size + 10, limit_offset=4)
    assert len(found.load()) == 2 * size + 10
    bad = find_slice(log, 2, 10_000, limit_offset=4)
    with pytest.raises(CorruptLogError) as caught:
        bad.load()
    assert (caught.value.position, caught.value.offset) == (2 * size, 2)
    before = find_slice(log, 0, 10_000, limit_offset=4)
    assert len(before.load()) == 2 * size
    data[2 * size + 100] ^= 1
    found = find_slice(log, 0, 10_000, limit_offset=4)
    assert not found.is_verified()
    assert len(found.load()) == 4 * size
    assert found.is_verified()


# --- timestamps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 2])
def test_a_timestamp_is_found_to_the_record(partition: OnePartition, codec: int) -> None:
    log = partition.log(internal_segment_bytes="400", index_interval_bytes="0")
    for start in range(0, 60, 3):
        records = [NewRecord(b"k", b"v", (), NOW + 10 * (start + i)) for i in range(3)]
        log.append(encode_batch(records, timestamp_ms=NOW, codec=codec), now_ms=NOW)
    log.flush()
    assert len(log.segments) > 2
    for number in range(60):
        at = NOW + 10 * number
        assert run_steps(log.find_timestamp(at)) == (number, at)
        assert run_steps(log.find_timestamp(at - 9)) == (number, at)
    assert run_steps(log.find_timestamp(NOW + 591)) is None
    assert run_steps(log.find_max_timestamp()) == (59, NOW + 590)


def test_out_of_order_times_give_the_first_record_that_is_late_enough(
    partition: OnePartition,
) -> None:
    log = partition.log(index_interval_bytes="0")
    for delta in (50, 10, 90, 20, 90):
        log.append(batch_of(at=NOW + delta), now_ms=NOW)
    log.flush()
    assert run_steps(log.find_timestamp(NOW + 15)) == (0, NOW + 50)
    assert run_steps(log.find_timestamp(NOW + 51)) == (2, NOW + 90)
    assert run_steps(log.find_max_timestamp()) == (2, NOW + 90)
    log.delete_records_before(3)
    assert run_steps(log.find_timestamp(NOW)) == (3, NOW + 20)
    assert run_steps(log.find_max_timestamp()) == (4, NOW + 90)


def test_an_empty_log_has_no_timestamps(partition: OnePartition) -> None:
    log = partition.log()
    assert run_steps(log.find_timestamp(0)) is None
    assert run_steps(log.find_max_timestamp()) is None


@pytest.mark.parametrize("find", ["find_timestamp", "find_max_timestamp"])
def test_lookups_by_time_do_not_return_deleted_records(partition: OnePartition, find: str) -> None:
    log = partition.log()
    log.append(batch_of(size=5000, at=NOW + 1000), now_ms=NOW)
    for number in range(20):
        log.append(batch_of(size=5000, at=NOW + number), now_ms=NOW)
    log.flush()
    log.delete_records_before(15)
    partition.fs.content(log.chain.active.path())[30_000] ^= 1
    found = run_steps(getattr(log, find)(*([NOW] if find == "find_timestamp" else [])))
    assert found == ((15, NOW + 14) if find == "find_timestamp" else (20, NOW + 19))


@pytest.mark.parametrize("find", ["find_timestamp", "find_max_timestamp"])
def test_lookups_by_time_in_large_batches_run_in_steps(partition: OnePartition, find: str) -> None:
    log = partition.log()
    records = [NewRecord(b"k", bytes(1000), (), NOW + index) for index in range(3000)]
    log.append(encode_batch(records, timestamp_ms=NOW, codec=4), now_ms=NOW)
    log.flush()
    steps = list(getattr(log, find)(*([NOW + 2999] if find == "find_timestamp" else [])))
    assert [work.holds for work in steps if work is not None] == [8 << 20]
    assert steps.count(None) > 5


def test_a_lookup_by_time_starts_again_if_its_segment_is_deleted_meanwhile(
    partition: OnePartition,
) -> None:
    log = partition.filled(4, size=100, internal_segment_bytes="200")
    searches = 0

    def find(segments: Sequence[Segment]) -> Steps[tuple[int, int] | None]:
        nonlocal searches
        searches += 1
        yield None
        if searches == 1:
            log.delete_records_before(2)
            raise StorageError("the file is gone")
        return segments[0].base_offset, NOW

    def fail(segments: Sequence[Segment]) -> Steps[tuple[int, int] | None]:
        yield None
        raise StorageError("the disk is broken")

    assert run_steps(search(log.chain, find)) == (2, NOW)
    with pytest.raises(StorageError, match="broken"):
        run_steps(search(log.chain, fail))
