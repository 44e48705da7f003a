"""The bytes of transaction markers."""

from __future__ import annotations

from tidemill.log.format.batch import parse_header
from tidemill.log.format.markers import Marker, decode_marker, encode_marker


def test_bytes_of_a_marker() -> None:
    batch = encode_marker(Marker(5, 3, True, 7), timestamp_ms=1)
    header = parse_header(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert batch[61:] == bytes.fromhex("20000000080000 00010c000000000007 00")
    assert decode_marker(batch) == Marker(5, 3, True, 7)
