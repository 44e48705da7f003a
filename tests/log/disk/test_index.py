"""Sparse indexes: lookups, the bytes of the files, and damage."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faultyfs import FaultyFileSystem
from tidemill.log.disk.index import (
    IndexTable,
    MapCache,
    ascending,
    find_entry,
    find_position,
    find_time_end,
    find_time_entry,
    last_offset_entry,
    last_time_entry,
    most_maps,
    offset_entries_until,
    plausible,
)


def _offsets(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def _times(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@pytest.mark.parametrize(
    ("relative", "position"), [(0, 0), (9, 0), (10, 100), (11, 100), (20, 200), (99, 200)]
)
def test_an_offset_is_looked_for_from_the_last_entry_at_or_below_it(
    relative: int, position: int
) -> None:
    found = find_entry(_offsets((10, 100), (20, 200)), relative)
    assert (0 if found is None else found[1]) == position


@pytest.mark.parametrize(
    ("position", "found"), [(0, 0), (99, 0), (100, 100), (199, 100), (200, 200), (9999, 200)]
)
def test_a_place_between_batches_is_that_of_the_last_entry_before_it(
    position: int, found: int
) -> None:
    assert find_position(_offsets((10, 100), (20, 200)), position) == found
    assert find_position(b"", position) == 0


@pytest.mark.parametrize("interval", [0, 3000])
def test_a_table_knows_where_recent_batches_start(interval: int) -> None:
    table = IndexTable()
    for number in range(3000):
        table.add(number, number * 100, 100, 5, interval)
    for position in (0, 99, 100, 150_050, 250_000, 299_950, 299_999):
        start = table.batch_start(position)
        assert start % 100 == 0
        assert 0 <= position - start < 100 + interval + 100
    assert table.batch_start(299_999) == 299_900
    assert IndexTable().batch_start(5) == 0


@pytest.mark.parametrize(("timestamp", "relative"), [(4, -1), (5, 10), (7, 10), (8, 20), (99, 20)])
def test_a_time_is_looked_for_from_the_last_entry_at_or_before_it(
    timestamp: int, relative: int
) -> None:
    found = find_time_entry(_times((5, 10), (8, 20)), timestamp)
    assert (-1 if found is None else found[1]) == relative


@given(
    sizes=st.lists(st.integers(61, 400), max_size=60),
    interval=st.integers(0, 1000),
    times=st.lists(st.integers(0, 50), min_size=60, max_size=60),
)
def test_entries_lead_to_the_batch_or_before_it(
    sizes: list[int], interval: int, times: list[int]
) -> None:
    table = IndexTable()
    starts, position = [], 0
    for relative, size in enumerate(sizes):
        table.add(relative, position, size, times[relative], interval)
        starts.append(position)
        position += size
    table.seal()
    for relative, start in enumerate(starts):
        entry = find_entry(table.offsets, relative)
        assert entry is None or entry[1] <= start
        recent = table.find_recent(relative, position)
        assert recent in (None, (start, sizes[relative]))
        assert recent is not None or relative == 0
    if sizes:
        latest = max(times[: len(sizes)])
        assert last_time_entry(table.times) == (latest, times.index(latest))
        assert last_offset_entry(table.offsets) == (len(sizes) - 1, starts[-1])
        assert plausible(table.offsets, table.times, position)
        assert ascending(table.offsets, position)


def test_an_index_that_is_read_again_continues_at_its_end() -> None:
    table = IndexTable()
    for relative in range(10):
        table.add(relative, relative * 100, 100, 1000 + relative, 50)
    table.seal()
    again = IndexTable(bytearray(table.offsets), bytearray(table.times))
    assert (again.last_relative, again.max_timestamp) == (9, 1009)
    again.seal()
    assert again.offsets == table.offsets
    assert again.times == table.times


@pytest.mark.parametrize(
    ("offsets", "times", "why"),
    [
        (_offsets((1, 0))[:-1], _times((5, 1)), "half an entry"),
        (_offsets((1, 500)), _times((5, 1)), "a position behind the segment"),
        (_offsets((-1, 0)), _times((5, 1)), "a negative offset"),
        (_offsets((1, 0)), b"", "no time index for records"),
    ],
)
def test_index_files_that_do_not_match_their_segment_are_not_plausible(
    offsets: bytes, times: bytes, why: str
) -> None:
    assert not plausible(offsets, times, 400), why


def test_a_torn_page_of_zeros_breaks_the_order() -> None:
    assert ascending(_offsets((1, 0), (5, 100)), 200)
    assert not ascending(_offsets((1, 0), (0, 0), (9, 150)), 200)
    assert not ascending(_offsets((1, 0), (5, 200)), 200)


def test_only_entries_up_to_an_offset_are_kept() -> None:
    assert offset_entries_until(_offsets((1, 0), (5, 100), (9, 200)), 5) == _offsets(
        (1, 0), (5, 100)
    )
    times = _times((10, 1), (12, 5), (11, 9))
    assert find_time_end(times, 9) == 24  # the third goes back in time
    assert find_time_end(times, 4) == 12


def map_ten_files(fs: FaultyFileSystem, maps: MapCache) -> None:
    for number in range(10):
        fs.write_bytes(f"/d/{number}", b"%d" % number)
        assert maps.get(f"/d/{number}") == b"%d" % number


def test_mapped_files_are_bounded(fs: FaultyFileSystem) -> None:
    maps = MapCache(fs, limit=3)
    map_ten_files(fs, maps)
    assert len(maps) == 3
    fs.write_bytes("/d/9", b"new")
    maps.drop("/d/9")
    assert maps.get("/d/9") == b"new"


def test_maps_are_dropped_if_the_system_allows_no_more_open_files(fs: FaultyFileSystem) -> None:
    maps = MapCache(fs)
    map_ten_files(fs, maps)
    fs.write_bytes("/d/last", b"last")
    fs.fail("read", errno.EMFILE)
    assert maps.get("/d/last") == b"last"
    assert len(maps) == 1
    fs.fail("read", errno.EMFILE, times=2)
    with pytest.raises(OSError, match="Too many open files"):
        maps.get("/d/1")


def test_the_maps_that_hold_descriptors_are_a_part_of_the_open_files() -> None:
    assert most_maps(4096) == 256
    assert most_maps(100) == 25
