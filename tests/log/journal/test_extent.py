"""The second place that knows the last entry: what is written is read, or is not valid."""

from __future__ import annotations

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tidemill.log.journal.extent import (
    EXTENT,
    MOST_PROMISES,
    SLOT_BYTES,
    Extent,
    ExtentFile,
    Promise,
    decode_extent,
    encode_extent,
    read_extent,
)

ID = bytes(range(16))


def promises(count: int) -> bytes:
    each = (bytes(16) + n.to_bytes(4, "big") + (n * 7).to_bytes(8, "big") for n in range(count))
    return b"".join(each)


@pytest.mark.parametrize("count", [0, 1, 300, MOST_PROMISES])
def test_an_extent_is_read_as_it_was_written(count: int) -> None:
    extent = Extent(ID, 5, 77, 70, promises(count))
    data = encode_extent(extent, 9)
    assert len(data) % 4096 == 0
    assert len(data) <= SLOT_BYTES
    assert decode_extent(data + bytes(100)) == (9, extent)
    assert list(extent) == [Promise(bytes(16), n, n * 7) for n in range(count)]
    end = 64 + 28 * count
    for position in {0, 5, 8, 30, 60, end - 1}:
        changed = bytearray(data)
        changed[position] ^= 16
        assert decode_extent(bytes(changed)) is None
    assert decode_extent(data[: end - 1]) is None


def test_more_promises_than_there_is_space_for_are_not_all() -> None:
    found = decode_extent(encode_extent(Extent(ID, 5, 77, 70, promises(MOST_PROMISES + 1)), 1))
    assert found is not None
    assert not found[1].is_complete
    assert len(list(found[1])) == MOST_PROMISES


def test_a_torn_write_leaves_the_extent_before() -> None:
    fs = FaultyFileSystem()
    fs.makedirs("/data")
    file = ExtentFile(fs, "/data")
    file.open()
    assert read_extent(fs, "/data") is None
    for sequence in range(1, 6):
        file.write(Extent(ID, 5, sequence, 1))
        file.sync()
        found = read_extent(fs, "/data")
        assert found is not None
        assert found.sequence == sequence
        data = fs.content(f"/data/{EXTENT}")
        newest = sequence % 2 * SLOT_BYTES
        before, data[newest] = data[newest], 0
        found = read_extent(fs, "/data")
        assert (0 if found is None else found.sequence) == sequence - 1
        data[newest] = before
    file.open()  # by the next broker, over a file that is whole
    assert read_extent(fs, "/data") is not None
    file.write(Extent(ID, 6, 0, 1))
    file.close()
    found = read_extent(fs, "/data")
    assert found is not None
    assert found.epoch == 6
