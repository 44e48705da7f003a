"""The records of share groups: tables of bytes, and there and back."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.consumer_groups.format import FORMAT as CONSUMER_FORMAT
from tidemill.state.modern_groups.format import RecordKey, RecordKind
from tidemill.state.share_groups.format import FORMAT
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

T = UUID(int=1)

KEYS = [
    (RecordKey(RecordKind.MEMBER, "g", "mm"), b"\0\x0a\0\1g\0\2mm"),
    (RecordKey(RecordKind.GROUP, "g"), b"\0\x0b\0\1g"),
    (RecordKey(RecordKind.TARGET_EPOCH, "g"), b"\0\x0c\0\1g"),
    (RecordKey(RecordKind.TARGET, "g", "m"), b"\0\x0d\0\1g\0\1m"),
    (RecordKey(RecordKind.CURRENT, "g", "m"), b"\0\x0e\0\1g\0\1m"),
    (RecordKey(RecordKind.IGNORED, "g"), b"\0\x0f\0\1g"),
]


@pytest.mark.parametrize(("key", "data"), KEYS)
def test_keys(key: RecordKey, data: bytes) -> None:
    assert FORMAT.encode_key(key) == data
    assert FORMAT.decode_key(data) == key


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 16, 100])
def test_keys_of_other_records_are_left_to_others(version: int) -> None:
    assert FORMAT.decode_key(version.to_bytes(2, "big") + b"\0\1g\0\1m") is None


def test_no_record_is_of_both_kinds_of_groups() -> None:
    assert not set(FORMAT.versions.values()) & set(CONSUMER_FORMAT.versions.values())


def test_values_as_bytes() -> None:
    assert FORMAT.encode_group(7, 0) == b"\0\0\0\0\0\7\0"
    assert FORMAT.encode_group(7, -1) == b"\0\0\0\0\0\7\1\0\x08" + b"\xff" * 8
    assert FORMAT.encode_target_epoch(7) == b"\0\0\0\0\0\7\0"
    partitions = b"\2" + T.bytes + b"\3\0\0\0\1\0\0\0\2" + b"\0"
    assert FORMAT.encode_target({T: frozenset([2, 1])}) == b"\0\0" + partitions + b"\0"
    current = ShareAssignment(3, 2, {T: frozenset([2, 1])})
    assert FORMAT.encode_current(current) == b"\0\0\0\0\0\3\0\0\0\2\0" + partitions + b"\0"
    member = ShareMember("r", "c", "h", ("a",))
    assert FORMAT.encode_member(member) == b"\0\0\2r\2c\2h\2\2a\0"


def test_values_there_and_back() -> None:
    for member in (ShareMember(), ShareMember("r", "client", "host", ("a", "b"))):
        assert FORMAT.decode_member(FORMAT.encode_member(member)) == member
    current = ShareAssignment(5, 4, {T: frozenset([0, 3]), UUID(int=2): frozenset([1])})
    assert FORMAT.decode_current(FORMAT.encode_current(current)) == current
    assert FORMAT.decode_target(FORMAT.encode_target(current.partitions)) == current.partitions
    assert FORMAT.decode_group(FORMAT.encode_group(3, 99)) == (3, 99)
    assert FORMAT.decode_target_epoch(FORMAT.encode_target_epoch(3)) == 3


def test_damaged_and_newer_values_are_refused() -> None:
    value = FORMAT.encode_member(ShareMember("r", "client", "host", ("a", "b")))
    for size in range(2, len(value) - 1):
        with pytest.raises(InvalidRecordError):
            FORMAT.decode_member(value[:size])
    with pytest.raises(FormatVersionError, match="ShareGroupMemberMetadataValue"):
        FORMAT.decode_member(b"\0\1" + value[2:])
    with pytest.raises(InvalidRecordError, match="ShareGroupMetadataValue"):
        FORMAT.decode_group(b"\xff\xff\0\0\0\1\0")
