"""The records of ``__share_group_state``: their bytes, and what can't be read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.share_partitions.support import KEY
from tidemill.errors import TidemillError
from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.share_partitions.format import (
    Kind,
    State,
    StateBatch,
    Stored,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)

STORED = Stored(
    4, 10, [StateBatch(10, 11, State.AVAILABLE, 2), StateBatch(12, 40, State.ARCHIVED, 1)], 29, 6
)


def test_keys_have_the_bytes_of_apache_kafka() -> None:
    tail = "0001" + "67" + "00000000000000000000000000000009" + "00000003"
    assert encode_key(Kind.SNAPSHOT, KEY).hex() == "0000" + tail
    assert encode_key(Kind.UPDATE, KEY).hex() == "0001" + tail
    for kind in Kind:
        assert decode_key(encode_key(kind, KEY)) == (kind, KEY)


def test_values_have_the_bytes_of_apache_kafka() -> None:
    batches = (
        "03"  # two
        "000000000000000a000000000000000b00000200"
        "000000000000000c000000000000002804000100"
    )
    tail = batches + "01" + "00" + "04" + "0000001d"  # tag 0: 29 are complete
    snapshot = encode_snapshot(STORED, leader_epoch=7, created_ms=1, now_ms=2)
    assert snapshot.hex() == (
        "0000" + "00000004" + "00000006" + "00000007" + "000000000000000a"
        "0000000000000001" + "0000000000000002" + tail
    )
    assert decode_snapshot(snapshot) == (STORED, 1)
    update = encode_update(STORED, leader_epoch=7)
    assert update.hex() == "0000" + "00000004" + "00000007" + "000000000000000a" + tail
    assert decode_update(update) == Stored(4, 10, STORED.batches, 29)


def test_a_count_that_does_not_fit_is_the_largest_one() -> None:
    many = Stored(0, 0, [StateBatch(0, 0, State.AVAILABLE, 70_000)], 0)
    assert decode_update(encode_update(many, leader_epoch=0)).batches[0].delivery_count == 32_767


@pytest.mark.parametrize(
    "batches",
    [
        [StateBatch(9, 9, State.ARCHIVED, 1)],
        [StateBatch(12, 11, State.ARCHIVED, 1)],
        [StateBatch(10, 20, State.ARCHIVED, 1), StateBatch(20, 21, State.ARCHIVED, 1)],
        [StateBatch(10, 20, State.ARCHIVED, -1)],
    ],
)
def test_ranges_that_contradict_each_other_are_refused(batches: list[StateBatch]) -> None:
    value = encode_update(Stored(0, 10, batches, 0), leader_epoch=0)
    with pytest.raises(InvalidRecordError):
        decode_update(value)


def test_newer_versions_are_refused() -> None:
    with pytest.raises(FormatVersionError):
        decode_key(b"\x00\x02" + encode_key(Kind.UPDATE, KEY)[2:])
    with pytest.raises(FormatVersionError):
        decode_update(b"\x00\x01")
    with pytest.raises(InvalidRecordError):
        decode_snapshot(b"\xff\xff")


@given(st.binary(max_size=80))
def test_any_bytes_give_a_value_or_a_typed_error(data: bytes) -> None:
    for decode in (decode_key, decode_snapshot, decode_update):
        with suppress(TidemillError):
            decode(data)
