"""The records of windows: what is written is read, and what is malformed is refused."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.queues.blocks import decode
from tidemill.state.queues.format import (
    MARKS,
    Kind,
    Marks,
    StateKey,
    decode_key,
    decode_marks,
    decode_offset,
    encode_key,
    encode_marks,
    encode_offset,
)
from tidemill.state.queues.window import AckWindow

ID = UUID(int=7)


@pytest.mark.parametrize("kind", list(Kind))
def test_keys(kind: Kind) -> None:
    key = StateKey(kind, "quëue", ID, 3, 17)
    assert decode_key(encode_key(key)) == key
    assert key.of_window() == StateKey(kind, "quëue", ID, 3, MARKS)


def test_values() -> None:
    assert decode_marks(encode_marks(Marks(3, 9))) == Marks(3, 9)
    assert decode_offset(encode_offset(12)) == 12


def test_malformed_keys_and_values_are_refused() -> None:
    good = encode_key(StateKey(Kind.QUEUE, "q", ID, 0))
    with pytest.raises(FormatVersionError):
        decode_key(b"\x09" + good[1:])
    for bad in (b"", good[:-1], b"\x00\x63" + good[2:]):
        with pytest.raises(InvalidRecordError):
            decode_key(bad)
    for bad in (b"", encode_marks(Marks(3, 9))[:-1], encode_marks(Marks(9, 3))):
        with pytest.raises(InvalidRecordError):
            decode_marks(bad)
    with pytest.raises(InvalidRecordError):
        decode_offset(encode_offset(-1))
    for bad in (b"\x05", b"\x00\x00\x00\x00\x01x", b"\x00" + bytes(4)):
        with pytest.raises(InvalidRecordError):
            decode(bad)


def test_a_million_acknowledged_records_cost_one_record() -> None:
    window = AckWindow()
    window.acquire(1, 1_000_000, 1_000_000)
    window.acknowledge(1, 0, 999_999)
    records = window.take_records()
    assert records == [(MARKS, encode_marks(Marks(1_000_000, 1_000_000)))]
    assert len(window._blocks) == 1  # the one that is not full


def test_one_record_that_is_out_keeps_finished_blocks_short() -> None:
    window = AckWindow()
    window.acquire(1, 100_000, 100_000)
    window.acknowledge(1, 1, 99_999)
    stored = dict(window.take_records())
    assert sum(len(value or b"") for value in stored.values()) < 2000
    again = AckWindow.recover({k: v for k, v in stored.items() if v is not None}, 100_000)
    assert (again.start, again.next, again.returned) == (0, 100_000, 1)
    (run,) = again.acquire(2, 10, 100_000)
    assert run == (0, 0, 1)
