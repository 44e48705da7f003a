"""Bytes of ``__consumer_offsets`` and what they mean (Apache Kafka's message definitions)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.groups.consumer_protocol import subscribed_topics
from tidemill.state.groups.format import (
    GroupKey,
    GroupValue,
    OffsetKey,
    StoredMember,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from tidemill.state.types import CommittedOffset


def h(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


OFFSET_KEY = h("0001", "0003", b"grp".hex(), "0005", b"topic".hex(), "00000007")
GROUP_KEY = h("0002", "0003", b"grp".hex())


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (OFFSET_KEY, OffsetKey("grp", "topic", 7)),
        (h("0000") + OFFSET_KEY[2:], OffsetKey("grp", "topic", 7)),
        (GROUP_KEY, GroupKey("grp")),
        (h("0003", "0003", b"grp".hex()), None),  # ConsumerGroupMetadataKey (KIP-848)
    ],
)
def test_keys(data: bytes, key: object) -> None:
    assert decode_key(data) == key


def test_keys_are_written_in_the_newest_version() -> None:
    assert encode_offset_key(OffsetKey("grp", "topic", 7)) == OFFSET_KEY
    assert encode_group_key(GroupKey("grp")) == GROUP_KEY


OFFSET = "000000000000002a"
TIME = "0000018bcfe56800"
TIME_MS = 1_700_000_000_000
META = "0002" + b"me".hex()

OFFSET_VALUES = [
    (h("0000", OFFSET, META, TIME), CommittedOffset(42, -1, "me", TIME_MS)),
    (
        h("0001", OFFSET, META, TIME, "0000018bcfe56be8"),
        CommittedOffset(42, -1, "me", TIME_MS, TIME_MS + 1000),
    ),
    (h("0001", OFFSET, META, TIME, "ff" * 8), CommittedOffset(42, -1, "me", TIME_MS)),
    (h("0002", OFFSET, META, TIME), CommittedOffset(42, -1, "me", TIME_MS)),
    (h("0003", OFFSET, "00000009", META, TIME), CommittedOffset(42, 9, "me", TIME_MS)),
    (
        h("0004", OFFSET, "00000009", "03" + b"me".hex(), TIME, "00"),
        CommittedOffset(42, 9, "me", TIME_MS),
    ),
    (  # version 4 with the topic's id in tagged field 0
        h("0004", OFFSET, "00000009", "03" + b"me".hex(), TIME, "010010", "ab" * 16),
        CommittedOffset(42, 9, "me", TIME_MS),
    ),
]


@pytest.mark.parametrize(("data", "value"), OFFSET_VALUES)
def test_offset_values(data: bytes, value: CommittedOffset) -> None:
    assert decode_offset_value(data) == value


def test_offset_values_are_written_in_version_3_or_with_expiry_in_1() -> None:
    assert encode_offset_value(OFFSET_VALUES[4][1]) == OFFSET_VALUES[4][0]
    assert encode_offset_value(OFFSET_VALUES[1][1]) == OFFSET_VALUES[1][0]


MEMBER = StoredMember("m-1", "i", "c", "/h", 60_000, 10_000, b"\x01\x02", b"\x03")
GROUP = GroupValue("consumer", 5, "range", "m-1", TIME_MS, (MEMBER,))
EMPTY = GroupValue("consumer", 6, None, None, TIME_MS, ())


def s(text: str) -> str:
    return f"{len(text):04x}" + text.encode().hex()


def c(text: str) -> str:
    return f"{len(text) + 1:02x}" + text.encode().hex()


BLOBS = "00000002" + "0102" + "00000001" + "03"
HEAD = s("consumer") + "00000005" + s("range") + s("m-1")


def group(state_timestamp_ms: int, **changes: Any) -> GroupValue:
    """The group, with changes of its member."""
    member = replace(MEMBER, **changes)
    return replace(GROUP, state_timestamp_ms=state_timestamp_ms, members=(member,))


GROUP_VALUES = [
    (
        h("0000", HEAD, "00000001", s("m-1"), s("c"), s("/h"), "00002710", BLOBS),
        group(-1, instance_id=None, rebalance_timeout_ms=10_000),
    ),
    (
        h("0001", HEAD, "00000001", s("m-1"), s("c"), s("/h"), "0000ea60", "00002710", BLOBS),
        group(-1, instance_id=None),
    ),
    (
        h("0002", HEAD, TIME, "00000001", s("m-1"), s("c"), s("/h"), "0000ea60", "00002710", BLOBS),
        group(TIME_MS, instance_id=None),
    ),
    (
        h(
            *("0003", HEAD, TIME, "00000001", s("m-1"), s("i"), s("c"), s("/h")),
            *("0000ea60", "00002710", BLOBS),
        ),
        GROUP,
    ),
    (h("0003", s("consumer"), "00000006", "ffff", "ffff", TIME, "00000000"), EMPTY),
    (
        h(
            *("0004", c("consumer"), "00000005", c("range"), c("m-1"), TIME, "02"),
            *(c("m-1"), c("i"), c("c"), c("/h"), "0000ea60", "00002710"),
            *("03", "0102", "02", "03", "00", "00"),
        ),
        GROUP,
    ),
    (h("0004", c("consumer"), "00000006", "00", "00", TIME, "01", "00"), EMPTY),
]


@pytest.mark.parametrize(("data", "value"), GROUP_VALUES)
def test_group_values(data: bytes, value: GroupValue) -> None:
    assert decode_group_value(data) == value


def test_group_values_are_written_in_version_3() -> None:
    assert encode_group_value(GROUP) == GROUP_VALUES[3][0]
    assert encode_group_value(EMPTY) == GROUP_VALUES[4][0]


def test_unknown_versions_are_refused() -> None:
    for decode in (decode_offset_value, decode_group_value):
        with pytest.raises(FormatVersionError):
            decode(h("0005") + b"\0" * 100)
    with pytest.raises(InvalidRecordError):
        decode_key(h("ffff") + b"\0" * 100)


@pytest.mark.parametrize(
    ("decode", "data"),
    [(decode_key, OFFSET_KEY), (decode_key, GROUP_KEY)]
    + [(decode_offset_value, data) for data, _ in OFFSET_VALUES]
    + [(decode_group_value, data) for data, _ in GROUP_VALUES],
)
def test_every_cut_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(InvalidRecordError):
            decode(data[:size])


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        with suppress(InvalidRecordError, FormatVersionError):
            decode(data)
    topics = subscribed_topics(data)
    assert topics is None or isinstance(topics, frozenset)


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        (h("0000", "00000002", s("a"), s("b"), "ffffffff"), {"a", "b"}),
        (h("0003", "00000001", s("a"), "00000000", "00000000", "00000001", "ffff"), {"a"}),
        (h("0000", "00000000"), set()),
        (b"", None),
        (h("ffff", "00000000"), None),
        (h("0000", "7fffffff"), None),
        (h("0000", "ffffffff"), None),
    ],
)
def test_subscriptions(data: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics(data) == topics
