"""CRC-32C: the values that RFC 3720 gives, of every kind of buffer."""

from __future__ import annotations

import random

import pytest

from tidemill.log.format.crc import crc32c
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.native import extension

# RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
KNOWN = {
    b"": 0x00000000,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}


@pytest.mark.parametrize(("data", "crc"), KNOWN.items(), ids=lambda each: repr(each)[:20])
def test_known_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_every_kind_of_buffer_has_the_same_crc() -> None:
    data = bytes(range(256)) * 300
    expected = crc32c(data)
    shifted = bytearray(21) + data
    assert crc32c(bytearray(data)) == expected
    assert crc32c(memoryview(data)) == expected
    assert crc32c(memoryview(shifted)[21:]) == expected


def test_a_view_with_gaps_is_refused() -> None:
    with pytest.raises((BufferError, ValueError, TypeError)):
        crc32c(memoryview(bytes(100))[::2])


def test_the_extension_computes_the_same_for_every_length() -> None:
    data = random.Random(7).randbytes(30_000)
    around = [base + n for base in (256, 768, 1536, 4096, 12_288, 24_576) for n in range(-9, 10)]
    for size in [*range(300), *around, 30_000 - 3]:
        batch = encode_batch([NewRecord(None, data[:size])], timestamp_ms=0)
        for start in (0, 1, 3):
            view = memoryview(bytearray(start) + batch)[start:]
            assert extension.check_batch(view, -1) is not None, (size, start)
        batch[-2] ^= 1  # in the value
        if size:
            assert extension.check_batch(batch, -1) is None, size
