"""The index of aborted transactions: the bytes of its file, and damage that is noticed."""

from __future__ import annotations

import pytest

from tidemill.log.disk.aborted_index import (
    ENTRY_SIZE,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)


def test_bytes_of_an_index_entry() -> None:
    data = encode_aborted([AbortedTransaction(1, 2, 3, 4)])
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))
    assert decode_aborted(data) == [AbortedTransaction(1, 2, 3, 4)]


@pytest.mark.parametrize("tail", [bytes(ENTRY_SIZE), b"\x00\x01" + bytes(32), b"\x00"])
def test_an_index_with_a_torn_end_is_refused_or_cut(tail: bytes) -> None:
    good = AbortedTransaction(1, 2, 3, 4)
    data = encode_aborted([good]) + tail
    assert decode_aborted(data, whole=False) == [good]
    with pytest.raises(ValueError, match="entr"):
        decode_aborted(data)
    with pytest.raises(ValueError, match="entr"):
        decode_aborted(tail)  # zeros are not an entry, not even one with offset 0
