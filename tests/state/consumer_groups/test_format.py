"""The records of consumer groups: tables of bytes, and there and back."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.consumer_groups import format as codec
from tidemill.state.consumer_groups.types import (
    ClassicProtocols,
    ConsumerMember,
    MemberAssignment,
    MemberState,
    ResolvedPattern,
)
from tidemill.state.modern_groups.format import RecordKey, RecordKind

T = UUID(int=1)

KEYS = [
    (RecordKey(RecordKind.GROUP, "g"), b"\0\3\0\1g"),
    (RecordKey(RecordKind.IGNORED, "g"), b"\0\4\0\1g"),
    (RecordKey(RecordKind.MEMBER, "g", "mm"), b"\0\5\0\1g\0\2mm"),
    (RecordKey(RecordKind.TARGET_EPOCH, "g"), b"\0\6\0\1g"),
    (RecordKey(RecordKind.TARGET, "g", "m"), b"\0\7\0\1g\0\1m"),
    (RecordKey(RecordKind.CURRENT, "g", "m"), b"\0\x08\0\1g\0\1m"),
    (RecordKey(RecordKind.PATTERN, "g", "t.*"), b"\0\x10\0\1g\0\3t.*"),
]


@pytest.mark.parametrize(("key", "data"), KEYS)
def test_keys(key: RecordKey, data: bytes) -> None:
    assert codec.FORMAT.encode_key(key) == data
    assert codec.FORMAT.decode_key(data) == key


@pytest.mark.parametrize("version", [0, 1, 2, 9, 15, 17, 100])
def test_keys_of_other_records_are_left_to_others(version: int) -> None:
    assert codec.FORMAT.decode_key(version.to_bytes(2, "big") + b"\0\1g\0\1m") is None


def test_values_as_bytes() -> None:
    assert codec.FORMAT.encode_group(7, 0) == b"\0\0\0\0\0\7\0"
    assert codec.FORMAT.encode_group(7, -1) == b"\0\0\0\0\0\7\1\0\x08" + b"\xff" * 8
    assert codec.FORMAT.encode_target_epoch(7) == b"\0\0\0\0\0\7\0"
    target = b"\0\0" + b"\2" + T.bytes + b"\3\0\0\0\1\0\0\0\2" + b"\0" + b"\0"
    assert codec.FORMAT.encode_target({T: frozenset([2, 1])}) == target
    current = MemberAssignment(3, 2, MemberState.UNREVOKED, {T: {1: 3}}, {})
    epochs = b"\1\0\5\2\0\0\0\3"
    assert codec.encode_current(current) == (
        b"\0\0\0\0\0\3\0\0\0\2\1" + b"\2" + T.bytes + b"\2\0\0\0\1" + epochs + b"\1" + b"\0"
    )


MEMBERS = [
    ConsumerMember(),
    ConsumerMember("i", "r", "client", "host", ("a", "b"), "t.*", 1000, "range"),
    ConsumerMember(classic=ClassicProtocols(10_000, (("range", b"meta"), ("x", b"")))),
]


@pytest.mark.parametrize("member", MEMBERS)
def test_members_there_and_back(member: ConsumerMember) -> None:
    assert codec.decode_member(codec.encode_member(member)) == member


def test_other_values_there_and_back() -> None:
    current = MemberAssignment(
        5, 4, MemberState.UNRELEASED, {T: {0: 5, 3: 2}}, {UUID(int=2): {1: 1}}
    )
    assert codec.decode_current(codec.encode_current(current)) == current
    target = {T: frozenset([1, 2]), UUID(int=2): frozenset([0])}
    assert codec.FORMAT.decode_target(codec.FORMAT.encode_target(target)) == target
    pattern = ResolvedPattern(frozenset(["a", "b"]), 9, 1000)
    assert codec.decode_pattern(codec.encode_pattern(pattern)) == pattern
    assert codec.FORMAT.decode_group(codec.FORMAT.encode_group(3, 99)) == (3, 99)


def test_a_value_without_assignment_epochs_has_the_epoch_of_the_member() -> None:
    old = b"\0\0\0\0\0\3\0\0\0\2\0" + b"\2" + T.bytes + b"\2\0\0\0\1" + b"\0" + b"\1" + b"\0"
    assert codec.decode_current(old).assigned == {T: {1: 3}}


def test_damaged_and_newer_values_are_refused() -> None:
    value = codec.encode_member(MEMBERS[1])
    for size in range(2, len(value) - 1):
        with pytest.raises(InvalidRecordError):
            codec.decode_member(value[:size])
    with pytest.raises(FormatVersionError):
        codec.decode_member(b"\0\1" + value[2:])
    with pytest.raises(FormatVersionError):
        codec.decode_current(b"\0\0\0\0\0\3\0\0\0\2\x7f\1\1\0")
